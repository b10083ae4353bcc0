"""The providers' wires, one small file each."""
