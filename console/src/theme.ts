// The theme: the system's, or the one that was chosen and is remembered.

import { effect, signal } from "@preact/signals";

export type Theme = "system" | "light" | "dark";

const KEY = "patchbay.theme";
const THEMES: Theme[] = ["system", "light", "dark"];

export const theme = signal<Theme>(stored());

effect(() => {
  const chosen = theme.value;
  if (chosen === "system") delete document.documentElement.dataset.theme;
  else document.documentElement.dataset.theme = chosen;
  try {
    if (chosen === "system") localStorage.removeItem(KEY);
    else localStorage.setItem(KEY, chosen);
  } catch {
    // storage is forbidden: the choice is for this page
  }
});

export function nextTheme(): void {
  theme.value = THEMES[(THEMES.indexOf(theme.peek()) + 1) % THEMES.length]!;
}

function stored(): Theme {
  try {
    const found = localStorage.getItem(KEY) as Theme | null;
    return found && THEMES.includes(found) ? found : "system";
  } catch {
    return "system";
  }
}
