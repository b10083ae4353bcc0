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

render(<App />, document.getElementById("app")!);
