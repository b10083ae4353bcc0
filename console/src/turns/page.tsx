// The page of turns: the list, and the selected turn beside it.

import { effect } from "@preact/signals";
import { useEffect } from "preact/hooks";
import { listen } from "../live";
import { parts, query } from "../route";
import { TurnDetail } from "./detail";
import { TurnList } from "./list";
import { filters, load, refresh, take } from "./store";

const KINDS = ["server.request.begin", "server.request"];

export function TurnsPage() {
  useEffect(() => {
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
