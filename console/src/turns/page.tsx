// The page of turns: the list, and the selected turn beside it.

import { effect } from "@preact/signals";
import { useLayoutEffect } from "preact/hooks";
import { listen } from "../live";
import type { ConsolePage } from "../pages";
import { parts, query } from "../route";
import { focusList } from "../ui/rows";
import { TurnDetail } from "./detail";
import { closeTurn, TurnList } from "./list";
import { filters, load, refresh, take } from "./store";

const KINDS = ["server.request.begin", "server.request"];

function TurnsPage() {
  useLayoutEffect(() => { // (asks before the page is painted)
    const stopLoading = effect(() => {
      filters.value;
      void load();
    });
    const stopListening = listen(KINDS, { onEvent: take, onGap: refresh });
    return () => {
      stopLoading();
      stopListening();
    };
  }, []);
  const id = parts.value[1];
  return (
    <main class={`turns ${id ? "split" : ""} ${id && query.value.get("edit") ? "editing" : ""}`}>
      <TurnList />
      {id && <TurnDetail key={id} id={id} />}
    </main>
  );
}

export const TURNS: ConsolePage = {
  path: "turns",
  title: "Turns",
  Page: TurnsPage,
  keys: [
    ["j  ↓", "Next turn"],
    ["k  ↑", "Previous turn"],
    ["Enter", "Open the turn; again: go to its detail"],
    ["Esc", "Close what is open, back to the list"],
    ["/", "Search"],
    ["[  ]", "Previous and next part of the turn"],
    ["e", "Edit and resend"],
  ],
  close: closeTurn,
  actionOf(key, target, isField) {
    if (isField) return key === "Escape" && target.closest(".filters") ? focusList : undefined;
    const actions: Record<string, () => void> = {
      "/": () => document.getElementById("filter-q")?.focus(),
      j: () => send("move", 1),
      k: () => send("move", -1),
      "[": () => send("step", -1),
      "]": () => send("step", 1),
      e: () => document.getElementById("edit")?.click(),
      Escape: () => {
        if (target.closest("#detail")) focusList();
        else if (parts.peek()[1]) closeTurn();
      },
    };
    return actions[key];
  },
};

function send(what: "move" | "step", by: number): void {
  window.dispatchEvent(new CustomEvent(`console:${what}`, { detail: by }));
}
