// Texts that the browser keeps; where storage is forbidden they are for this page.

import { effect, type Signal, signal } from "@preact/signals";

export function stored(key: string): Signal<string> {
  const value = signal(storageOr(() => localStorage.getItem(key)) ?? "");
  effect(() => {
    const text = value.value;
    storageOr(() => (text ? localStorage.setItem(key, text) : localStorage.removeItem(key)));
  });
  return value;
}

/** What `use` of the storage returns; null where it is forbidden or full. */
export function storageOr<T>(use: () => T): T | null {
  try {
    return use();
  } catch {
    return null;
  }
}
