"""The page ``/docs``: what there is by ``/openapi.json``, to read and to try; it loads no more."""

import base64
from hashlib import sha256
from typing import Final

STYLE: Final = """
:root { color-scheme: light dark; --line: #d5d9e0; --soft: #f4f6f9; --dim: #5b6472; --ink: #16191f;
  --page: #fff; --link: #0b5cad; --bad: #b3261e; --get: #0b6e4f; --post: #0b5cad; --put: #8a5a00;
  --patch: #6b3fa0; --delete: #b3261e }
@media (prefers-color-scheme: dark) { :root { --line: #343a46; --soft: #1d2129; --dim: #a0a9b8;
  --ink: #e8ebf0; --page: #14171c; --link: #7db7f5; --bad: #ff8a80; --get: #63d3a6; --post: #7db7f5;
  --put: #e5b567; --patch: #c6a0f6; --delete: #ff8a80 } }
* { box-sizing: border-box }
body { font: 16px/1.5 system-ui, sans-serif; color: var(--ink); background: var(--page);
  max-width: 66rem; margin: 0 auto; padding: 1.5rem 1rem 4rem }
h1 { font-size: 1.6rem; margin: 0 } h2 { font-size: 1.2rem; margin: 2rem 0 0 }
h3 { font-size: .8rem; letter-spacing: .05em; text-transform: uppercase; color: var(--dim);
  margin: 1.2rem 0 .3rem }
p { margin: .2rem 0 .8rem } a { color: var(--link) } .dim { color: var(--dim) }
code, pre, textarea, summary .path, input { font: 14px/1.45 ui-monospace, monospace }
.bar { position: sticky; top: 0; background: var(--page); padding: .8rem 0; display: flex;
  gap: .8rem; flex-wrap: wrap; border-bottom: 1px solid var(--line); z-index: 1; margin-top: .8rem }
.bar label { flex: 1 1 16rem } label { display: block; font-size: .85rem; color: var(--dim) }
input, select, textarea { width: 100%; padding: .4rem .5rem; border: 1px solid var(--line);
  border-radius: .3rem; background: var(--page); color: var(--ink) }
textarea { min-height: 6rem; resize: vertical }
:focus-visible { outline: 2px solid var(--link); outline-offset: 1px }
.operation { border: 1px solid var(--line); border-radius: .4rem; margin: .5rem 0;
  scroll-margin-top: 6rem }
.lock { font-size: .75rem; color: var(--dim); border: 1px solid var(--line); border-radius: 1rem;
  padding: 0 .6rem; margin-left: auto }
.operation > summary { padding: .5rem .7rem; cursor: pointer; display: flex; gap: .7rem;
  flex-wrap: wrap; align-items: baseline; list-style: none }
.operation > summary::-webkit-details-marker { display: none }
.operation[open] > summary { border-bottom: 1px solid var(--line); background: var(--soft) }
.inside { padding: 0 .9rem 1rem } .method { min-width: 4.2rem; font-weight: 700; font-size: .85rem }
.get { color: var(--get) } .post { color: var(--post) } .put { color: var(--put) }
.patch { color: var(--patch) } .delete { color: var(--delete) } .failed { color: var(--bad) }
pre { background: var(--soft); padding: .6rem .7rem; border-radius: .3rem; overflow: auto;
  max-height: 24rem; margin: .3rem 0; white-space: pre-wrap; overflow-wrap: anywhere }
table { border-collapse: collapse; width: 100% }
td { vertical-align: top; padding: .3rem .6rem .3rem 0; border-top: 1px solid var(--line) }
td:first-child { white-space: nowrap } td pre { margin: .2rem 0 }
.fields { display: grid; grid-template-columns: repeat(auto-fill, minmax(14rem, 1fr)); gap: .6rem }
button { font: inherit; padding: .35rem 1.1rem; border: 1px solid var(--link); border-radius: .3rem;
  background: var(--link); color: var(--page); cursor: pointer; margin: .7rem .5rem 0 0 }
button.quiet { background: none; color: var(--link) } button[disabled] { opacity: .45 }
"""

# What is shown of a schema, and what a form begins with.
_SCHEMAS: Final = r"""
const resolve = schema => schema.$ref
  ? schema.$ref.slice(2).split("/").reduce((found, name) => found[name], api) : schema;

function range(schema, least, most) {
  const from = schema[least], to = schema[most];
  if (from === undefined && to === undefined) return "";
  return ` ${from ?? ""}..${to >= 2 ** 53 ? "" : to ?? ""}`;
}

function shown(given, indent = "") {
  const schema = resolve(given), deeper = indent + "  ";
  const either = schema.anyOf || schema.oneOf;
  if (either) return either.map(each => shown(each, indent)).join(" | ");
  if ("const" in schema) return JSON.stringify(schema.const);
  if (schema.enum) return schema.enum.map(value => JSON.stringify(value)).join(" | ");
  if (schema.type === "array") return `[${shown(schema.items || {}, indent)}, …]`;
  if (schema.type === "object") {
    const lines = Object.entries(schema.properties || {}).map(([name, inner]) => {
      const optional = (schema.required || []).includes(name) ? "" : "?";
      const note = inner.description ? `  // ${inner.description}` : "";
      return `${deeper}${name}${optional}: ${shown(inner, deeper)}${note}\n`;
    });
    if (schema.additionalProperties)
      lines.push(`${deeper}…: ${shown(schema.additionalProperties, deeper)}\n`);
    return lines.length ? `{\n${lines.join("")}${indent}}` : "{…}";
  }
  if (schema.type === "string") {
    const size = range(schema, "minLength", "maxLength");
    return "text" + (schema.pattern ? ` ${schema.pattern}` : size);
  }
  return (schema.type || "anything") + range(schema, "minimum", "maximum");
}

function example(given) {
  const schema = resolve(given);
  if ("default" in schema) return schema.default;
  if ("const" in schema) return schema.const;
  if (schema.enum) return schema.enum[0];
  const either = schema.anyOf || schema.oneOf;
  if (either) return either.some(each => each.type === "null") ? null : example(either[0]);
  switch (schema.type) {
    case "object": return Object.fromEntries(
      (schema.required || []).map(name => [name, example(schema.properties[name])]));
    case "array": return schema.minItems ? [example(schema.items)] : [];
    case "boolean": return true;
    case "integer": case "number": return Math.max(schema.minimum ?? 0, 1);
    default: return "hello";
  }
}
"""

_OPERATIONS: Final = r"""
function make(name, properties = {}, ...inside) {
  const made = Object.assign(document.createElement(name), properties);
  made.append(...inside);
  return made;
}

function table(rows) {
  return make("table", {}, ...rows.map(cells =>
    make("tr", {}, ...cells.map(cell => make("td", {}, cell)))));
}

const told = (schema, description) => {
  const cell = make("span", {}, make("code", {textContent: shown(schema)}));
  if (description) cell.append(make("div", {className: "dim", textContent: description}));
  return cell;
};

function reading(operation, parameters) {
  const parts = [];
  if (parameters.length) parts.push(make("h3", {textContent: "Parameters"}), table(parameters.map(
    held => [make("code", {textContent: held.name}), held.in + (held.required ? ", required" : ""),
      told(held.schema, held.schema.description)])));
  for (const [media, content] of Object.entries(operation.requestBody?.content || {}))
    parts.push(make("h3", {textContent: `Body: ${media}`}), make("pre", {textContent:
      content.schema ? shown(content.schema) : "any bytes"}));
  parts.push(make("h3", {textContent: "Answers"}), table(Object.entries(operation.responses).map(
    ([status, answer]) => {
      const cell = make("span", {textContent: answer.description});
      for (const [media, content] of Object.entries(answer.content || {}))
        if (status < 400) cell.append(make("pre", {textContent:
          media + (content.schema ? `\n${shown(content.schema)}` : "")}));
      return [make("b", {textContent: status, className: status < 400 ? "" : "failed"}), cell];
    })));
  return parts;
}

function address(path, parameters, inputs) {
  const query = new URLSearchParams();
  for (const held of parameters) {
    const value = inputs[held.name].value;
    if (held.in === "path") path = path.replace(`{${held.name}}`, encodeURIComponent(value));
    else if (held.in === "query" && value !== "")
      for (const each of held.schema.type === "array" ? value.split(",") : [value])
        query.append(held.name, each);
  }
  return query.size ? `${path}?${query}` : path;
}

async function show(answer, output, began) {
  const head = [...answer.headers].map(pair => pair.join(": ")).join("\n");
  output.className = answer.ok ? "" : "failed";
  const time = Math.round(performance.now() - began);
  output.textContent = `${answer.status} ${answer.statusText} in ${time} ms\n${head}\n\n`;
  const reader = answer.body?.pipeThrough(new TextDecoderStream()).getReader();
  for (let size = 0; reader && size < 200000;) {
    const {done, value} = await reader.read();
    if (done) return;
    size += value.length;
    output.append(value);
  }
}

function trying(method, path, operation, parameters) {
  const inputs = {}, media = Object.keys(operation.requestBody?.content || {});
  const form = make("form", {}, make("h3", {textContent: "Try it"}));
  const fields = make("div", {className: "fields"});
  for (const held of parameters) {
    inputs[held.name] = make("input", {required: !!held.required, autocomplete: "off",
      placeholder: held.schema.type === "array" ? "several: with commas" : ""});
    fields.append(make("label", {textContent: held.name}, inputs[held.name]));
  }
  const type = make("select", {}, ...media.map(each => make("option", {textContent: each})));
  const body = make("textarea", {spellcheck: false});
  const begin = () => {
    const schema = operation.requestBody.content[type.value].schema;
    body.value = schema ? JSON.stringify(example(schema), null, 2) : "hello";
  };
  if (media.length) {
    begin();
    type.addEventListener("change", begin);
    fields.append(make("label", {textContent: "type of the body"}, type));
  }
  const output = make("pre", {hidden: true, tabIndex: 0});
  output.setAttribute("aria-live", "polite");
  const send = make("button", {textContent: "Send"});
  const stop = make("button", {type: "button", textContent: "Stop", className: "quiet",
    disabled: true});
  form.append(fields);
  if (media.length) form.append(make("label", {textContent: "body"}, body));
  form.append(send, stop, output);
  form.addEventListener("submit", async event => {
    event.preventDefault();
    const ends = new AbortController(), headers = {}, began = performance.now();
    if (media.length) headers["Content-Type"] = type.value;
    for (const held of parameters)
      if (held.in === "header" && inputs[held.name].value)
        headers[held.name] = inputs[held.name].value;
    if (password.value) headers.Authorization = `Bearer ${password.value}`;
    stop.onclick = () => ends.abort();
    [output.hidden, output.className, output.textContent] = [false, "", "waits …"];
    [send.disabled, stop.disabled] = [true, false];
    try {
      const url = address(path, parameters, inputs);
      const sent = {method, headers, signal: ends.signal};
      if (media.length && body.value) sent.body = body.value;
      await show(await fetch(url, sent), output, began);
    } catch (error) {
      output.append(`\n${error.message}`);
    }
    [send.disabled, stop.disabled] = [false, true];
  });
  return form;
}
"""

_PAGE_SCRIPT: Final = r"""
const main = document.getElementById("paths"), password = document.getElementById("password");
const filter = document.getElementById("filter");
let api;

function operationOf(path, method, operation, common) {
  const parameters = [...common, ...(operation.parameters || [])];
  const lock = operation.security ? make("span", {className: "lock", textContent:
    operation.security.length > 1 ? "password, where there is one" : "password"}) : "";
  const summary = make("summary", {},
    make("span", {className: `method ${method}`, textContent: method.toUpperCase()}),
    make("span", {className: "path", textContent: path}),
    make("span", {className: "dim", textContent: operation.summary}), lock);
  const details = make("details", {className: "operation", id: method + path}, summary);
  details.dataset.words = `${method} ${path} ${operation.summary}`.toLowerCase();
  details.addEventListener("toggle", () => {
    if (details.children.length === 1) details.append(make("div", {className: "inside"},
      ...reading(operation, parameters),
      trying(method.toUpperCase(), path, operation, parameters)));
  });
  return details;
}

function showAll() {
  main.textContent = "";
  for (const tag of api.tags) {
    const group = make("section", {id: tag.name}, make("h2", {textContent: tag.name}),
      make("p", {className: "dim", textContent: tag.description}));
    for (const [path, methods] of Object.entries(api.paths))
      for (const [method, operation] of Object.entries(methods))
        if (operation.tags?.includes(tag.name))
          group.append(operationOf(path, method, operation, methods.parameters || []));
    main.append(group);
  }
  const wanted = document.getElementById(decodeURIComponent(location.hash.slice(1)));
  if (!wanted) return;
  wanted.open = true;
  wanted.scrollIntoView();
}

filter.addEventListener("input", () => {
  const words = filter.value.toLowerCase().split(/\s+/);
  for (const group of main.children) {
    const held = [...group.querySelectorAll(".operation")];
    for (const each of held)
      each.hidden = !words.every(word => each.dataset.words.includes(word));
    group.hidden = held.every(each => each.hidden);
  }
});
document.addEventListener("keydown", event => {
  if (event.key !== "/" || event.target.matches("input, textarea, select")) return;
  event.preventDefault();
  filter.focus();
});
fetch("/openapi.json").then(answer => answer.json()).then(found => {
  api = found;
  document.getElementById("version").textContent = api.info.version;
  showAll();
}).catch(error => { main.textContent = `/openapi.json cannot be read: ${error.message}`; });
"""

_SCRIPT: Final = _SCHEMAS + _OPERATIONS + _PAGE_SCRIPT
PAGE: Final = f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width">
<title>Asterism: the HTTP door</title>
<link rel="icon" href="data:,">
<style>{STYLE}</style>
</head>
<body>
<h1>The HTTP door <span class="dim" id="version"></span></h1>
<p class="dim">Every request that this service takes. Open one to see what it wants and answers, and
to send it. For programs: <a href="/openapi.json">/openapi.json</a>.</p>
<div class="bar" role="search">
<label>Filter, or press /<input id="filter" type="search" autocomplete="off"></label>
<label>Password, sent with each request
<input id="password" type="password" autocomplete="off"></label>
</div>
<main id="paths">Loading.</main>
<noscript>This page needs JavaScript; /openapi.json says the same.</noscript>
<script>{_SCRIPT}</script>
</body>
</html>
"""


def _source(text: str) -> str:
    return f"'sha256-{base64.b64encode(sha256(text.encode()).digest()).decode()}'"


def policy_of(style: str, script: str = "") -> tuple[tuple[bytes, bytes], ...]:
    """What a page may do in a browser: run its own script, if it has one, and ask its own origin.

    No other page frames it, where somebody could be led to type the password or to press a button.
    """
    runs = (f"script-src {_source(script)}", "connect-src 'self'") if script else ()
    rules = (
        "default-src 'none'",
        *runs,
        f"style-src {_source(style)}",
        "img-src data:",
        "base-uri 'none'",
        "form-action 'none'",
        "frame-ancestors 'none'",
    )
    return (
        (b"content-security-policy", "; ".join(rules).encode()),
        (b"x-frame-options", b"DENY"),
        (b"cross-origin-opener-policy", b"same-origin"),
        (b"referrer-policy", b"same-origin"),
    )


POLICY: Final = policy_of(STYLE, _SCRIPT)
