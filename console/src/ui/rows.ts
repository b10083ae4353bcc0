// A grid whose rows have the focus one at a time: its two layouts, its keys, and what they scroll to.

import type { RefObject } from "preact";
import { useEffect, useRef, useState } from "preact/hooks";

const WIDE_ROW = 32;
const NARROW_ROW = 52;
/** Pixels of the list from which a row is on one line. */
const WIDE = 720;

/** What the list shows at the moment a key comes: keys come faster than the page is drawn. */
export interface Rows {
  /** The rows that can have the focus, in their order. */
  keys(): string[];
  /** The row that has the focus, or would get it. */
  current(): string | null;
  /** The row whose detail is shown beside the list. */
  open(): string | null;
  /** The place of a row among all rows, and that of the first one to be seen with it. */
  placeOf(key: string): { first: number; index: number };
  focus(key: string): void;
  select(key: string, replace?: boolean): void;
}

interface Grid {
  frame: RefObject<HTMLElement | null>;
  scroller: RefObject<HTMLDivElement | null>;
  isWide: boolean;
  rowHeight: number;
  reveal: (key: string) => void;
  onKeyDown: (event: KeyboardEvent) => void;
}

export function focusList(): void {
  document.querySelector<HTMLElement>(".list .row[tabindex='0']")?.focus({ preventScroll: true });
}

export function useRows(rows: Rows): Grid {
  const frame = useRef<HTMLElement>(null);
  const scroller = useRef<HTMLDivElement>(null);
  const wasMoved = useRef(false);
  const [width, setWidth] = useState(WIDE);
  useEffect(() => {
    const observer = new ResizeObserver(([entry]) => setWidth(entry!.contentRect.width));
    observer.observe(frame.current!);
    return () => observer.disconnect();
  }, []);
  const isWide = width >= WIDE;
  const rowHeight = isWide ? WIDE_ROW : NARROW_ROW;

  const reveal = (key: string) => {
    const element = scroller.current!;
    const head = element.querySelector<HTMLElement>(".head")?.offsetHeight ?? 0;
    const { first, index } = rows.placeOf(key);
    const bottom = (index + 1) * rowHeight + head;
    if (first * rowHeight < element.scrollTop) element.scrollTop = first * rowHeight;
    else if (bottom > element.scrollTop + element.clientHeight) element.scrollTop = bottom - element.clientHeight;
  };
  const move = (by: number) => {
    const keys = rows.keys();
    const key = keys[Math.max(0, Math.min(keys.length - 1, keys.indexOf(rows.current() ?? "") + by))];
    if (key === undefined) return;
    rows.focus(key);
    reveal(key);
    requestAnimationFrame(focusList);
    const open = rows.open();
    if (open !== null && open !== key) rows.select(key, true);
  };

  // Keys of the page, wherever the focus is; app.tsx leaves out those of fields.
  useEffect(() => {
    const onMove = (event: Event) => {
      const isThere = scroller.current?.contains(document.activeElement) || rows.open() !== null || wasMoved.current;
      wasMoved.current = true;
      move(isThere ? (event as CustomEvent<number>).detail : 0);
    };
    window.addEventListener("console:move", onMove);
    return () => window.removeEventListener("console:move", onMove);
  });

  const onKeyDown = (event: KeyboardEvent) => {
    if ((event.target as HTMLElement).closest("button")) return;
    const page = Math.max(1, Math.floor((scroller.current?.clientHeight ?? 0) / rowHeight) - 1);
    const by = { ArrowDown: 1, ArrowUp: -1, PageDown: page, PageUp: -page, Home: -Infinity, End: Infinity }[event.key];
    const current = rows.current();
    if (by !== undefined) move(by);
    else if (event.key === "Enter" && current !== null) {
      if (rows.open() === current) document.getElementById("detail")?.focus();
      else rows.select(current);
    } else return;
    event.preventDefault();
  };
  return { frame, scroller, isWide, rowHeight, reveal, onKeyDown };
}
