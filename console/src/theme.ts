// The theme: the system's, or the one that was chosen and is remembered.

import { computed, effect } from "@preact/signals";
import { stored } from "./stored";

const THEMES = ["system", "light", "dark"] as const;

/** "" for the system's. */
const chosen = stored("patchbay.theme");

export const theme = computed(() => THEMES.find((each) => each === chosen.value) ?? "system");

effect(() => {
  if (theme.value === "system") delete document.documentElement.dataset.theme;
  else document.documentElement.dataset.theme = theme.value;
});

export function nextTheme(): void {
  const next = THEMES[(THEMES.indexOf(theme.peek()) + 1) % THEMES.length]!;
  chosen.value = next === "system" ? "" : next;
}
