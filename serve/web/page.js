"use strict";
// The page of the service. Everything that others wrote, such as names of images and of
// classes, becomes text of elements and never markup.
const most = 60; // flagged images that are shown
const at = id => document.getElementById(id);
let classes = [];

function element(name, text, parent) {
  const e = document.createElement(name);
  if (text !== undefined) e.textContent = text;
  if (parent) parent.append(e);
  return e;
}

function headers() {
  const token = sessionStorage.getItem("token");
  return token ? {Authorization: "Bearer " + token} : {};
}

async function ask(path, options = {}) {
  const response = await fetch(path, {...options, headers: {...headers(), ...options.headers}, credentials: "omit"});
  if (response.status === 401) {
    at("login").hidden = false;
    at("state").textContent = "a token is needed";
    throw new Error("a token is needed");
  }
  return response;
}

async function json(path) {
  const response = await ask(path);
  const value = await response.json();
  if (!response.ok) throw Object.assign(new Error(value.error), {status: response.status});
  return value;
}

const percent = x => (100 * x).toFixed(x < 0.1 ? 1 : 0) + "%";

async function showCounts() {
  const spans = [3600, 86400, 30 * 86400];
  const answers = await Promise.all(spans.map(s => json("/v1/counts?from=" + encodeURIComponent(new Date(Date.now() - 1000 * s).toISOString()))));
  at("memory").hidden = false;
  const rows = new Map();
  answers.forEach(({counts}, i) => {
    for (const c of counts) {
      for (const name of [c.class, ""]) {
        if (!rows.has(name)) rows.set(name, spans.map(() => [0, 0]));
        rows.get(name)[i][0] += c.n;
        rows.get(name)[i][1] += c.ood;
      }
    }
  });
  const body = at("counts").tBodies[0];
  body.replaceChildren();
  for (const name of [...rows.keys()].sort()) {
    const row = element("tr", undefined, body);
    element("th", name === "" ? "all" : name, row).scope = "row";
    for (const [n, ood] of rows.get(name)) {
      element("td", n, row);
      element("td", n ? percent(ood / n) : "", row);
    }
  }
  const bins = new Array(20).fill(0);
  for (const c of answers[1].counts) c.p_values.forEach((n, i) => { bins[i] += n; });
  const total = bins.reduce((a, b) => a + b, 0), highest = Math.max(1, ...bins, total / 10);
  const svg = at("pvalues"), shape = (name, attributes) => {
    const e = document.createElementNS("http://www.w3.org/2000/svg", name);
    for (const [k, v] of Object.entries(attributes)) e.setAttribute(k, v);
    svg.append(e);
  };
  svg.replaceChildren();
  bins.forEach((n, i) => shape("rect", {x: 20 * i + 1, width: 18, y: 100 - 100 * n / highest, height: 100 * n / highest}));
  shape("line", {x1: 0, x2: 400, y1: 100 - 5 * total / highest, y2: 100 - 5 * total / highest});
}

async function showDrift() {
  const {sources, chance_without_cause} = await json("/v1/drift");
  at("alpha").textContent = percent(chance_without_cause);
  const body = at("drift").tBodies[0];
  body.replaceChildren();
  for (const s of sources) {
    const row = element("tr", undefined, body);
    element("th", s.source, row).scope = "row";
    element("td", s.detector, row);
    element("td", s.all ? s.all.images : 0, row);
    element("td", s.all ? percent(Math.max(0, Math.min(1, s.all.log_wealth / s.all.threshold))) : "", row);
    const raised = s.all ? [...(s.all.alarm ? ["all images"] : []), ...s.classes.filter(c => c.alarm).map(c => c.class)] : [];
    const cell = element("td", raised.join(", "), row);
    if (raised.length) cell.className = "alarm";
  }
}

async function say(item, id, what) {
  const said = item.querySelector(".said");
  try {
    const response = await ask("/v1/reviews", {method: "POST", headers: {"Content-Type": "application/json"}, body: JSON.stringify([{id, ...what}])});
    const answer = await response.json();
    if (!response.ok) throw new Error(answer.error);
    said.textContent = what.verdict === "undo" ? "" : what.label ? "it is " + what.label : what.new ? "new class: " + what.new : what.verdict;
  } catch (error) {
    said.textContent = error.message;
  }
}

function sayNew(item, id) {
  const name = prompt("Name of the new class");
  if (name) say(item, id, {new: name});
}

async function showPicture(place, hash) {
  try {
    const response = await ask("/v1/images/" + hash);
    if (!response.ok) return;
    const url = URL.createObjectURL(await response.blob());
    const img = element("img");
    img.alt = "";
    img.onload = img.onerror = () => URL.revokeObjectURL(url);
    img.src = url;
    place.replaceChildren(img);
  } catch { /* the place stays empty */ }
}

function showFlagged(v, first) {
  if (at("v-" + v.id)) return;
  const item = element("li");
  item.id = "v-" + v.id;
  item.tabIndex = 0;
  const place = element("div", undefined, item);
  if (v.kept) showPicture(place, v.image); else Object.assign(place, {className: "missing", textContent: "not kept"});
  element("div", v.name || "(no name)", item).className = "path";
  element("div", "looks like " + v.class + ", p = " + v.p_value.toPrecision(2), item);
  element("div", new Date(v.time).toLocaleString() + " from " + v.source, item).className = "note";
  const said = element("div", "", item);
  said.className = "said";
  said.setAttribute("role", "status");
  if (v.review) said.textContent = v.review.class || v.review.decision;
  if (v.stored !== false) {
    const button = (text, act) => { element("button", text, item).onclick = act; };
    const list = element("select", undefined, item);
    list.setAttribute("aria-label", "it is of the class");
    element("option", "it is…", list).value = "";
    classes.forEach((c, i) => { element("option", i < 9 ? i + 1 + " " + c : c, list).value = c; });
    list.onchange = () => { if (list.value) say(item, v.id, {label: list.value}); };
    button("new class", () => sayNew(item, v.id));
    button("fine", () => say(item, v.id, {verdict: "fine"}));
    button("junk", () => say(item, v.id, {verdict: "junk"}));
    button("undo", () => say(item, v.id, {verdict: "undo"}));
    item.onkeydown = event => {
      if (event.target !== item || event.ctrlKey || event.metaKey || event.altKey) return;
      const act = {f: () => say(item, v.id, {verdict: "fine"}), x: () => say(item, v.id, {verdict: "junk"}), u: () => say(item, v.id, {verdict: "undo"}), n: () => sayNew(item, v.id)}[event.key];
      const label = /^[1-9]$/.test(event.key) && classes[event.key - 1];
      if (act) act(); else if (label) say(item, v.id, {label}); else return;
      event.preventDefault();
    };
  } else said.textContent = "not stored";
  at("none").hidden = true;
  at("flagged")[first ? "prepend" : "append"](item);
  while (at("flagged").children.length > most) at("flagged").lastChild.remove();
}

// listen reads server-sent events by fetch, as an EventSource sends no token.
async function listen() {
  for (;;) {
    try {
      const response = await ask("/v1/events");
      if (!response.ok) throw new Error("status " + response.status);
      at("state").textContent = "live";
      const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
      let text = "";
      for (;;) {
        const {done, value} = await reader.read();
        if (done) break;
        const parts = (text + value).split("\n\n");
        text = parts.pop();
        for (const part of parts) {
          const data = part.split("\n").find(line => line.startsWith("data: "));
          if (data) showFlagged(JSON.parse(data.slice(6)), true);
        }
      }
    } catch (error) {
      if (!at("login").hidden) return;
    }
    at("state").textContent = "the service does not answer; trying again";
    await new Promise(again => setTimeout(again, 3000));
  }
}

async function refresh() {
  await Promise.allSettled([showDrift(), showCounts()]);
}

async function start() {
  at("login").hidden = true;
  try {
    const found = new Set();
    for (const model of await (await ask("/v2/repository/index", {method: "POST"})).json()) {
      for (const c of (await json("/v2/models/" + encodeURIComponent(model.name))).classes) found.add(c);
    }
    classes = [...found].sort();
    try {
      for (const v of (await json("/v1/verdicts?ood=true&limit=" + most)).verdicts) showFlagged(v, false);
    } catch (error) {
      if (error.status !== 404) throw error; // it remembers nothing
    }
    await refresh();
  } catch (error) {
    at("state").textContent = error.message;
    if (!at("login").hidden) return;
  }
  listen();
}

at("login").onsubmit = event => {
  event.preventDefault();
  sessionStorage.setItem("token", at("token").value.trim());
  start();
};
setInterval(() => { if (at("login").hidden && !document.hidden) refresh(); }, 10000);
start();
