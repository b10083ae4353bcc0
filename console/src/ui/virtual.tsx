// A list of rows of one height, of which only those in view are in the document.

import type { ComponentChildren, RefObject } from "preact";
import { useLayoutEffect, useRef, useState } from "preact/hooks";

const OVERSCAN = 8;

export interface VirtualListProps {
  keys: string[];
  rowHeight: number;
  /** The key of a row that stays in the document, wherever it is: the focused one. */
  keep: string | null;
  scroller: RefObject<HTMLDivElement | null>;
  row: (index: number, top: number) => ComponentChildren;
  /** The last rows come into view. */
  onEnd: () => void;
  /** Rows came in above what is in view; 0 when the top is in view again. */
  onAbove: (added: number) => void;
  children?: ComponentChildren;
}

export function VirtualList({ keys, rowHeight, keep, scroller, row, onEnd, onAbove, children }: VirtualListProps) {
  const [view, setView] = useState({ top: 0, height: 800 });
  const rows = useRef<HTMLDivElement>(null);
  const before = useRef(keys[0]);

  useLayoutEffect(() => {
    const element = scroller.current!;
    const measure = () => {
      setView({ top: element.scrollTop, height: element.clientHeight });
      if (element.scrollTop < 1) {
        rows.current!.style.minHeight = "";
        onAbove(0);
      }
    };
    measure();
    const observer = new ResizeObserver(measure);
    observer.observe(element);
    element.addEventListener("scroll", measure, { passive: true });
    return () => {
      observer.disconnect();
      element.removeEventListener("scroll", measure);
    };
  }, []);

  // Rows that come in above move the scroll position along, so that what is read, or has the focus, stays where it is.
  useLayoutEffect(() => {
    const element = scroller.current!;
    const added = before.current === undefined ? 0 : keys.indexOf(before.current);
    const stays = element.scrollTop > 0 || element.contains(document.activeElement);
    if (added > 0 && stays) {
      const top = element.scrollTop + added * rowHeight;
      rows.current!.style.minHeight = `${top + element.clientHeight}px`; // a short list could not be scrolled so far
      element.scrollTop = top;
      onAbove(added);
    }
    before.current = keys[0];
  }, [keys[0]]);

  const from = Math.max(0, Math.floor(view.top / rowHeight) - OVERSCAN);
  const to = Math.min(keys.length, Math.ceil((view.top + view.height) / rowHeight) + OVERSCAN);
  useLayoutEffect(() => {
    if (to >= keys.length) onEnd();
  }, [to, keys.length]);

  const shown = [];
  for (let index = from; index < to; index++) shown.push(index);
  const kept = keep === null ? -1 : keys.indexOf(keep);
  if (kept >= 0 && (kept < from || kept >= to)) shown.push(kept);

  return (
    <div class="scroller" ref={scroller} role="presentation">
      {children}
      <div class="rows" ref={rows} role="rowgroup" style={{ height: `${keys.length * rowHeight}px` }}>
        {shown.map((index) => row(index, index * rowHeight))}
      </div>
    </div>
  );
}
