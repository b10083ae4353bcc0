import "uplot/dist/uPlot.min.css";
import "../styles/tokens.css";
import "../styles/console.css";
import "../styles/turns.css";
import "../styles/approvals.css";
import "../styles/tools.css";
import "../styles/models.css";
import "../styles/chat.css";
import { render } from "preact";
import { App } from "./app";
import { loadInfo } from "./session";

// It is preloaded, and known when the page is first rendered: that asks for what it shows before it is painted.
void loadInfo().then(() => render(<App />, document.getElementById("app")!));
