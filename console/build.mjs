// Bundles the console into src/patchbay/console: hashed files, index.html and the licences of what is bundled.
// `node build.mjs --check` builds into memory and fails where the committed files differ.

import { readFileSync, readdirSync, mkdirSync, rmSync, writeFileSync } from "node:fs";
import { dirname, join, relative } from "node:path";
import { fileURLToPath } from "node:url";
import { build } from "esbuild";

const HERE = dirname(fileURLToPath(import.meta.url));
const OUT = join(HERE, "..", "src", "patchbay", "console");
const MAX_BYTES = 300_000;

/** Returns the files of a fresh build, by name. */
async function bundle() {
  const result = await build({
    absWorkingDir: HERE,
    entryPoints: { app: "src/main.tsx" },
    outdir: OUT,
    entryNames: "[name]-[hash]",
    chunkNames: "app-[name]-[hash]",
    splitting: true,
    bundle: true,
    minify: true,
    format: "esm",
    target: ["es2022", "chrome123", "firefox120", "safari17.5"],
    charset: "utf8",
    legalComments: "none",
    jsx: "automatic",
    jsxImportSource: "preact",
    metafile: true,
    write: false,
    logLevel: "warning",
  });
  const files = new Map(result.outputFiles.map((file) => [relative(OUT, file.path), file.text]));
  const entry = (ending) => [...files.keys()].find((name) => /^app-[A-Z0-9]+\.(js|css)$/.test(name) && name.endsWith(ending));
  files.set("index.html", page(entry(".js"), entry(".css")));
  files.set("LICENSES.txt", licences(Object.keys(result.metafile.inputs)));
  return files;
}

function page(script, style) {
  return `<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<title>Patchbay</title>
<link rel="icon" href="data:,">
<link rel="preload" href="/api/console" as="fetch" crossorigin>
<link rel="stylesheet" href="/console/${style}">
<script type="module" src="/console/${script}" blocking="render"></script>
</head>
<body>
<div id="app"></div>
<noscript>The console needs JavaScript.</noscript>
</body>
</html>
`;
}

/** Returns the licence texts of the packages that were bundled. */
function licences(inputs) {
  const packages = new Set(inputs.map((input) => input.match(/^node_modules\/((?:@[^/]+\/)?[^/]+)/)?.[1]).filter(Boolean));
  return [...packages]
    .sort()
    .map((name) => {
      const folder = join(HERE, "node_modules", name);
      const { version, license } = JSON.parse(readFileSync(join(folder, "package.json"), "utf8"));
      const file = readdirSync(folder).find((each) => /^licen[cs]e/i.test(each));
      if (!file) throw new Error(`${name} has no licence file: add its text to build.mjs`);
      return `${name} ${version} (${license})\n\n${readFileSync(join(folder, file), "utf8").trim()}\n`;
    })
    .join("\n----\n\n");
}

/** Returns the names of the built files in the folder; other files there are not the build's. */
function built() {
  return readdirSync(OUT).filter((name) => /^(app-.*\.(js|css)|index\.html|LICENSES\.txt)$/.test(name));
}

mkdirSync(OUT, { recursive: true });
const files = await bundle();
const bytes = [...files.values()].reduce((sum, text) => sum + Buffer.byteLength(text), 0);
if (bytes > MAX_BYTES) throw new Error(`the console has ${bytes} bytes, more than ${MAX_BYTES}`);
const old = built();
if (process.argv.includes("--check")) {
  const differs = (name) => !old.includes(name) || readFileSync(join(OUT, name), "utf8") !== files.get(name);
  const wrong = [...[...files.keys()].filter(differs), ...old.filter((name) => !files.has(name))];
  if (wrong.length) {
    console.error(`src/patchbay/console is not what console/ builds (${wrong.join(", ")}): make console, and commit it`);
    process.exit(1);
  }
} else {
  for (const name of old) rmSync(join(OUT, name));
  for (const [name, text] of files) writeFileSync(join(OUT, name), text);
  console.log(`src/patchbay/console: ${files.size} files, ${(bytes / 1000).toFixed(1)} kB`);
}
