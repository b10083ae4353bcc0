// The pages of the console, in the order of the top bar; the first is shown at /console.

import type { ComponentType } from "preact";
import { APPROVALS } from "./approvals/page";
import { MODELS } from "./models/page";
import { TOOLS } from "./tools/page";
import { CHAT } from "./chat/page";
import { TURNS } from "./turns/page";

/** Keys with what they do, for the help: two keys of one row are separated by two spaces. */
export type Keys = [string, string][];

export interface ConsolePage {
  /** The first part of the path below /console. */
  path: string;
  title: string;
  Page: ComponentType;
  keys: Keys;
  /** Returns what a key does here, which was pressed with the focus on `target`; `isHeld`: it is pressed since an earlier event. */
  actionOf(key: string, target: HTMLElement, isField: boolean, isHeld: boolean): (() => void) | undefined;
  /** What waits for the reader there: a number beside the title, on every page. */
  waiting?(): number;
  /** Closes what is open, where the page's own link is followed. */
  close?(): void;
}

export const PAGES: [ConsolePage, ...ConsolePage[]] = [TURNS, APPROVALS, TOOLS, MODELS, CHAT];
