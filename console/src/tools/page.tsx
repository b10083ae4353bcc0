// The page of tools: the list, and the selected tool beside it.

import { effect } from "@preact/signals";
import { useEffect } from "preact/hooks";
import { listen } from "../live";
import type { ConsolePage } from "../pages";
import { focusList } from "../ui/rows";
import { ToolDetail } from "./detail";
import { closeTool, ToolList } from "./list";
import { load, refresh, role, selected, stop } from "./store";

const KINDS = ["agent.tool.exec_end", "agent.tool.exec_skipped", "server.request"];

function ToolsPage() {
  useEffect(() => {
    const stopLoading = effect(() => {
      role.value;
      void load();
    });
    const stopListening = listen(KINDS, { onEvent: refresh, onGap: refresh });
    return () => {
      stopLoading();
      stopListening();
      stop();
    };
  }, []);
  const name = selected.value;
  return (
    <main class={`turns tools ${name ? "split" : ""}`}>
      <ToolList />
      {name && <ToolDetail key={`${role.value} ${name}`} name={name} />}
    </main>
  );
}

export const TOOLS: ConsolePage = {
  path: "tools",
  title: "Tools",
  Page: ToolsPage,
  keys: [
    ["j  ↓", "Next tool"],
    ["k  ↑", "Previous tool"],
    ["Enter", "Open the tool; again: go to its detail"],
    ["Esc", "Close what is open, back to the list"],
    ["/", "Filter"],
    ["Ctrl+Enter", "Call the tool with the arguments of the bench"],
  ],
  close: closeTool,
  actionOf(key, target, isField) {
    if (isField) return key === "Escape" ? focusList : undefined;
    const actions: Record<string, () => void> = {
      "/": () => document.getElementById("filter-q")?.focus(),
      j: () => move(1),
      k: () => move(-1),
      Escape: () => {
        if (target.closest("#detail")) focusList();
        else if (selected.peek()) closeTool();
      },
    };
    return actions[key];
  },
};

function move(by: number): void {
  window.dispatchEvent(new CustomEvent("console:move", { detail: by }));
}
