// The shell of the console: the top bar, the page of the URL, the dialogs, and the keys of all pages.

import { computed, signal } from "@preact/signals";
import { useEffect, useState } from "preact/hooks";
import { ApiError, BASE, request } from "./api";
import { watchApprovals } from "./approvals/store";
import { plural } from "./format";
import { connection, reconnect } from "./live";
import { type ConsolePage, type Keys, PAGES } from "./pages";
import { go, goTo, parts } from "./route";
import { info, infoError, loadInfo, needsSignIn, signIn } from "./session";
import { nextTheme, theme } from "./theme";
import { Bad, Dialog, Problem } from "./ui/parts";

const isHelpOpen = signal(false);

/** The keys of all pages; a page adds its own. */
const KEYS: Keys = [
  ["t", "Theme: system, light, dark"],
  ["?", "This help"],
];

const current = computed(() => PAGES.find((page) => page.path === (parts.value[0] ?? PAGES[0].path)));

export function App() {
  useEffect(() => {
    window.addEventListener("keydown", onKey);
    return () => window.removeEventListener("keydown", onKey);
  }, []);
  const known = info.value;
  const mayRead = known !== null && (known.signed_in || !known.needs_token);
  const hasApprovals = mayRead && known.approvals !== undefined;
  useEffect(() => (hasApprovals ? watchApprovals() : undefined), [hasApprovals]);
  return (
    <>
      <Bar />
      {infoError.value && !known ? (
        <main class="alone">
          <Problem error={infoError.value} retry={() => void loadInfo()} />
        </main>
      ) : mayRead ? (
        <Page />
      ) : (
        <main class="alone">
          {known && !needsSignIn.value && <Problem error={new ApiError(401, "This server wants a token.")} />}
        </main>
      )}
      {needsSignIn.value && <SignIn />}
      {isHelpOpen.value && <Help />}
    </>
  );
}

function Page() {
  const page = current.value;
  if (page) return <page.Page key={page.path} />;
  return (
    <main class="alone">
      <h1 class="unseen">Not found</h1>
      <Problem error={new ApiError(404, "The console has no such page.")}>
        <button type="button" class="primary" onClick={() => go({ path: ["turns"] })}>
          Go to the turns
        </button>
      </Problem>
    </main>
  );
}

function Bar() {
  const known = info.value;
  const shown = current.value?.path;
  // On a small screen the pages' names are scrolled.
  useEffect(() => document.querySelector(".bar nav [aria-current]")?.scrollIntoView({ block: "nearest", inline: "nearest" }), [shown]);
  const states = { live: "Live", connecting: "Connecting", lost: "Connection lost, reconnecting" };
  return (
    <header class="bar">
      <span class="name">
        <Logo />
        Patchbay
      </span>
      <nav aria-label="Pages">
        {PAGES.map((page) => (
          <a
            key={page.path}
            href={`${BASE}/console/${page.path}`}
            aria-current={page === current.value ? "page" : undefined}
            onClick={(event) => openPage(event, page)}
          >
            {page.title}
            {page.waiting && page.waiting() > 0 && (
              <span class="waiting" title={`${plural(page.waiting(), "call")} waiting`}>
                {page.waiting()}
              </span>
            )}
          </a>
        ))}
      </nav>
      <span class="facts">
        {known && (
          <>
            <span class="server">{known.server}</span>
            {known.upstream && <span class="upstream" title="The model's server">{known.upstream}</span>}
          </>
        )}
      </span>
      <span class={`connection ${connection.value}`} role="status" title={states[connection.value]}>
        {states[connection.value]}
      </span>
      <button type="button" class="quiet" onClick={nextTheme} title="Theme (t)" aria-label={`Theme: ${theme.value}`}>
        <span class={`theme-mark ${theme.value}`} />
      </button>
      <button type="button" class="quiet" onClick={() => (isHelpOpen.value = true)} aria-label="Help" title="Keys (?)">
        <kbd>?</kbd>
      </button>
    </header>
  );
}

function openPage(event: MouseEvent, page: ConsolePage): void {
  if (event.ctrlKey || event.metaKey || event.shiftKey) return; // in a tab or window of its own
  event.preventDefault();
  if (page === current.peek() && page.close) page.close();
  else goTo(page.path);
}

/** Two sockets and the cable between them. */
function Logo() {
  return (
    <svg viewBox="0 0 16 16" width="16" height="16" aria-hidden="true">
      <path d="M4 5.5v2.2c0 4 8 .6 8 4.6" fill="none" stroke="currentColor" stroke-width="1.6" stroke-linecap="round" />
      <circle cx="4" cy="3.6" r="2.1" fill="none" stroke="currentColor" stroke-width="1.4" />
      <circle cx="12" cy="12.4" r="2.1" fill="currentColor" />
    </svg>
  );
}

function SignIn() {
  const [token, setToken] = useState("");
  const [problem, setProblem] = useState("");
  const send = async (event: Event) => {
    event.preventDefault();
    try {
      await signIn(token);
      reconnect();
    } catch (error) {
      setProblem(error instanceof ApiError && error.status === 401 ? "The server has another token." : String((error as Error).message));
    }
  };
  return (
    <Dialog title="Sign in" onClose={() => (needsSignIn.value = false)}>
      <form onSubmit={(event) => void send(event)}>
        <label for="token">Token of the server</label>
        <input id="token" type="password" autocomplete="current-password" autofocus value={token} onInput={(event) => setToken(event.currentTarget.value)} />
        <p class="hint">It is the content of the file that the server was started with (--token-file), or its --api-key.</p>
        <Bad text={problem} role="alert" />
        <p class="actions">
          <button type="submit" class="primary" disabled={!token}>
            Sign in
          </button>
        </p>
      </form>
    </Dialog>
  );
}

function Help() {
  return (
    <Dialog title="Keys" onClose={() => (isHelpOpen.value = false)}>
      <dl class="keys">
        {[...(current.value?.keys ?? []), ...KEYS].map(([keys, what]) => (
          <div key={keys}>
            <dt>
              {keys.split("  ").map((key) => (
                <kbd key={key}>{key}</kbd>
              ))}
            </dt>
            <dd>{what}</dd>
          </div>
        ))}
      </dl>
      <p class="hint">Patchbay {info.value?.version}</p>
      {info.value?.needs_token && info.value.signed_in && (
        <p class="actions">
          <button type="button" onClick={() => void signOut()}>
            Sign out
          </button>
        </p>
      )}
    </Dialog>
  );
}

/** Ends the session, and loads the page again: nothing that was read stays in it. */
async function signOut(): Promise<void> {
  await request("/api/console/session", { method: "DELETE" }).catch(() => undefined); // the page says whether the reader is signed in
  window.location.reload();
}

function onKey(event: KeyboardEvent): void {
  if (event.defaultPrevented || event.ctrlKey || event.metaKey || event.altKey) return;
  const target = event.target as HTMLElement;
  if (target.closest("dialog")) return;
  const isField = target.matches("input, textarea, select");
  const common: Record<string, () => void> = { "?": () => (isHelpOpen.value = true), t: nextTheme };
  const act = (isField ? undefined : common[event.key]) ?? current.peek()?.actionOf(event.key, target, isField, event.repeat);
  if (!act) return;
  event.preventDefault();
  act();
}
