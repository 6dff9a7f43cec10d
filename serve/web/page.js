"use strict";
// The page of the service: what came, and the review queue. Everything that others wrote,
// such as names of images and of classes, becomes text of elements and never markup; what
// the server renders is escaped there.
const mostFlagged = 60; // images that are shown, as the server has it
const at = id => document.getElementById(id);

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

async function json(path, body, method) {
  const options = body === undefined ? {method} : {method: "POST", headers: {"Content-Type": "application/json"}, body: JSON.stringify(body)};
  const response = await ask(path, options);
  const value = await response.json();
  if (!response.ok) throw Object.assign(new Error(value.error), {status: response.status});
  return value;
}

const number = v => String(Number(v.toPrecision(3))).replace("-", "−");
const percent = share => number(100 * share) + "%";
const images = n => n.toLocaleString("en") + (n === 1 ? " image" : " images");

// picture is an image of an address that needs the token, or says what is missing.
function picture(path, alt, parent) {
  const place = element("div", undefined, parent);
  const missing = () => place.replaceChildren(Object.assign(element("div", "not shown"), {className: "missing"}));
  if (!path) return missing(), place;
  const img = element("img", undefined, place);
  Object.assign(img, {className: "thumb", alt});
  load(img, path).catch(missing);
  return place;
}

async function load(img, path) {
  if (!headers().Authorization) { // the browser may ask for it when it is seen
    Object.assign(img, {loading: "lazy", src: path});
    return new Promise((done, failed) => { img.onload = done; img.onerror = failed; });
  }
  const response = await ask(path);
  if (!response.ok) throw new Error("not shown");
  const url = URL.createObjectURL(await response.blob());
  img.onload = img.onerror = () => URL.revokeObjectURL(url);
  img.src = url;
}

// What came: the server renders it, and this part of the page is put in its place.
let span = new URLSearchParams(location.search).get("span") || "day";
const source = new URLSearchParams(location.search).get("source") || "";

async function showCame() {
  const response = await ask("/page?span=" + encodeURIComponent(span) + "&source=" + encodeURIComponent(source));
  if (!response.ok) return;
  const page = new DOMParser().parseFromString(await response.text(), "text/html");
  const newer = [...page.getElementById("newer").content.children];
  page.getElementById("newer").remove();
  const focused = document.activeElement?.dataset?.span;
  const now = page.getElementById("now-part"), said = at("acted")?.textContent, acting = document.activeElement?.dataset?.act;
  at("now").replaceChildren(...now.children);
  now.remove();
  if (said) at("acted").textContent = said;
  for (const button of document.querySelectorAll("#now [data-act]")) {
    button.hidden = false;
    button.onclick = () => act(button);
    if (actOf(button) === asked) button.textContent = "really " + button.textContent;
    if (button.dataset.act === acting) button.focus();
  }
  at("came").replaceChildren(...page.body.children);
  drawCharts(at("came"));
  for (const link of document.querySelectorAll("#came [data-span]")) {
    link.onclick = event => { event.preventDefault(); span = link.dataset.span; history.replaceState(null, "", "?span=" + span + location.hash); showCame(); };
    if (link.dataset.span === focused) link.focus();
  }
  for (const item of newer.reverse()) addFlagged(item);
}

let asked = ""; // what a first click asked for, also when the page was brought up to date since
const actOf = button => [button.dataset.act, button.dataset.source, button.dataset.detector].join("\n");

// act does what a button of an alarm says.
async function act(button) {
  const {act, source, detector, sure} = button.dataset;
  if (sure && asked !== actOf(button)) { // the second click does it
    asked = actOf(button);
    button.textContent = "really " + button.textContent;
    at("acted").textContent = sure;
    return;
  }
  asked = "";
  try {
    await json(act + (source ? "?" + new URLSearchParams({source, detector}) : ""), {});
    at("acted").textContent = button.textContent.replace("really ", "") + ": done" + (source ? " for " + source : "") + ".";
  } catch (error) {
    at("acted").textContent = error.message;
  }
  await showCame();
}

function addFlagged(item) {
  const old = at(item.id);
  if (old) {
    old.querySelector(".said").textContent = item.querySelector(".said").textContent;
    return;
  }
  for (const img of item.querySelectorAll("img[data-src]")) load(img, img.dataset.src).catch(() => img.replaceWith(Object.assign(element("div", "not shown"), {className: "missing"})));
  at("none").hidden = true;
  at("flagged").prepend(item);
  while (at("flagged").children.length > mostFlagged) at("flagged").lastChild.remove();
  offer(item);
}

// offer adds a button that brings an image to the queue.
function offer(item) {
  if (!at("queue").hidden && !item.querySelector("button")) element("button", "review", item).onclick = () => bring(item.id.slice(2));
}

function flaggedOf(v) {
  const item = element("li");
  item.id = "v-" + v.id;
  picture(v.kept && "/v1/images/" + v.image, v.name, item);
  element("div", v.name || "(no name)", item).className = "path";
  element("div", "looks like " + v.class + ", p = " + number(v.p_value), item);
  element("div", v.time.slice(0, 19).replace("T", " ") + " UTC from " + v.source, item).className = "note";
  element("div", v.stored ? "" : "not stored", item).className = "said";
  return item;
}

// The review queue.
let groups = [], here = 0, classes = [], said = [], detector = "", undone = [];
const reasons = new Map(); // of verdicts, by id

async function fill(first) {
  const q = await json("/v1/queue?limit=30&detector=" + encodeURIComponent(detector) + (first ? "&first=" + encodeURIComponent(first) : ""));
  groups = q.groups.map(g => g.images);
  here = 0;
  showGroup(q);
}

async function bring(id) {
  await fill(id);
  at("card").scrollIntoView({block: "nearest"});
  at("card").querySelector("[tabindex]")?.focus();
}

function known() { return [...classes, ...said.filter(c => !classes.includes(c))]; }

function showClasses() {
  at("classes").replaceChildren(...known().slice(0, 9).map((c, i) => {
    const button = element("button");
    button.type = "button";
    button.append(c + " ", element("kbd", i + 1));
    button.onclick = () => decide({label: c});
    return button;
  }));
  at("known").replaceChildren(...known().map(c => Object.assign(element("option"), {value: c})));
}

function showGroup(q) {
  const card = at("card"), group = groups[here];
  for (const id of ["fine", "junk", "alone", "class"]) at(id).disabled = !group;
  if (!group) {
    card.replaceChildren(element("p", "No flagged image waits for a review."));
    return;
  }
  const first = group[0], item = element("div"); // the others join what is said of it
  item.className = "verdict";
  item.tabIndex = -1;
  item.dataset.id = first.id;
  const look = element("div", undefined, item);
  picture(first.kept && "/v1/images/" + first.image, first.name, look);
  const middle = element("div", undefined, item);
  element("h3", first.name || "(no name)", middle).className = "path";
  const line = element("p", undefined, middle);
  element("span", "OOD", line).className = "badge ood";
  line.append(" looks like ");
  element("b", first.class, line);
  element("p", `p-value ${number(first.p_value)} · confidence ${number(first.confidence)} · ${first.source}`, middle).className = "numbers";
  const why = element("p", "", middle);
  if (first.review) element("p", "reviewed: " + (first.review.class ? "it is " + first.review.class : first.review.decision), middle).className = "numbers";
  if (group.length > 1) element("p", `${images(group.length)} that look alike; group ${here + 1} of ${groups.length}`, middle).className = "near-head";
  const list = element("ul", undefined, middle);
  list.className = "mosaic";
  for (const v of group) {
    const label = element("label", undefined, element("li", undefined, list));
    const tick = element("input", undefined, label);
    Object.assign(tick, {type: "checkbox", checked: true, value: v.id});
    tick.setAttribute("aria-label", v.name || "image " + v.id);
    picture(v.kept && "/v1/images/" + v.image, "", label);
  }
  if (group.length === 1) list.hidden = true;
  const beside = element("div", undefined, item);
  beside.className = "beside";
  card.replaceChildren(item);
  item.focus({preventScroll: true});
  explain(first, why, beside);
  if (q) at("said").textContent = [`${images(q.waiting)} in ${q.groups.length} ${q.groups.length === 1 ? "group" : "groups"}${q.more ? ", and more" : ""}.`, q.note || ""].join(" ").trim();
}

// explain says why an image was flagged, and shows the nearest training images.
async function explain(v, why, beside) {
  if (!reasons.has(v.id)) reasons.set(v.id, json("/v1/verdicts/" + encodeURIComponent(v.id) + "?explain=1").catch(() => ({})));
  const r = await reasons.get(v.id);
  if (r.why) why.textContent = r.why;
  if (!r.nearest || !r.nearest.length) return;
  element("p", "nearest in training", beside).className = "near-head";
  const list = element("ul", undefined, beside);
  list.className = "nearest";
  for (const n of r.nearest) {
    const figure = element("figure", undefined, element("li", undefined, list));
    picture(`/v1/detectors/${encodeURIComponent(detector)}/images/${n.row}`, n.class + ": " + n.path, figure);
    const caption = element("figcaption", undefined, figure);
    element("span", n.class, caption);
    caption.append(number(n.distance));
  }
}

const ticked = () => [...at("card").querySelectorAll("input:checked")].map(tick => tick.value);

// decide says the same of all images that are ticked, and goes on.
async function decide(what) {
  const group = groups[here], ids = ticked();
  if (!group || !ids.length) {
    if (group) at("said").textContent = "No image is ticked.";
    return;
  }
  if (what.label && !classes.includes(what.label)) what = {new: what.label};
  const by = at("by").value.trim();
  try {
    await json("/v1/reviews", ids.map(id => ({id, by, ...what})));
  } catch (error) {
    at("said").textContent = error.message;
    return;
  }
  if (what.new && !said.includes(what.new)) said.push(what.new);
  const text = what.label || what.new ? "it is " + (what.label || what.new) : what.verdict;
  undone.push({ids, group, text});
  for (const id of ids) if (at("v-" + id)) at("v-" + id).querySelector(".said").textContent = text;
  const left = group.filter(v => !ids.includes(v.id));
  groups.splice(here, 1, ...(left.length ? [left] : []));
  here = Math.max(0, Math.min(here, groups.length - 1));
  showClasses();
  if (groups.length) showGroup(); else await fill();
  at("said").textContent = `${images(ids.length)}: ${text}. Key u undoes it.`;
  tellReviews();
}

async function undo() {
  const last = undone.pop();
  if (!last) {
    at("said").textContent = "There is nothing to undo.";
    return;
  }
  try {
    await json("/v1/reviews", last.ids.map(id => ({id, verdict: "undo"})));
  } catch (error) {
    undone.push(last);
    at("said").textContent = error.message;
    return;
  }
  for (const id of last.ids) if (at("v-" + id)) at("v-" + id).querySelector(".said").textContent = "";
  groups = groups.map(g => g.filter(v => !last.group.some(w => w.id === v.id))).filter(g => g.length);
  here = Math.min(here, groups.length);
  groups.splice(here, 0, last.group);
  showGroup();
  at("said").textContent = `${images(last.ids.length)}: not ${last.text} any more.`;
  tellReviews();
}

function move(step) {
  if (!groups.length) return;
  here = Math.max(0, Math.min(groups.length - 1, here + step));
  showGroup();
  at("said").textContent = `Group ${here + 1} of ${groups.length}.`;
}

function onlyFirst() {
  const ticks = [...at("card").querySelectorAll("input")];
  const alone = ticks.slice(1).some(tick => tick.checked);
  ticks.forEach((tick, i) => { tick.checked = i === 0 || !alone; });
  at("said").textContent = images(ticked().length) + " ticked.";
}

document.addEventListener("keydown", event => {
  if (at("queue").hidden || event.defaultPrevented || event.ctrlKey || event.metaKey || event.altKey) return;
  if (event.target.closest("select, textarea, input:not([type=checkbox])")) return;
  const c = /^[1-9]$/.test(event.key) && known()[event.key - 1];
  const act = c ? () => decide({label: c}) : {
    j: () => move(1), k: () => move(-1), f: () => decide({verdict: "fine"}), x: () => decide({verdict: "junk"}), u: undo, s: onlyFirst,
    n: () => { at("class").focus(); at("class").scrollIntoView({block: "nearest"}); },
  }[event.key];
  if (!act) return;
  event.preventDefault();
  act();
});
at("class").onkeydown = event => {
  if (event.key === "Escape") at("card").querySelector("[tabindex]")?.focus();
  if (event.key !== "Enter") return;
  event.preventDefault();
  const name = at("class").value.trim();
  at("class").value = "";
  if (name) decide({label: name});
};
at("decide").onsubmit = event => event.preventDefault();
at("queue-tools").onsubmit = event => event.preventDefault();
at("before").onclick = () => move(-1);
at("next").onclick = () => move(1);
at("undo").onclick = undo;
at("fine").onclick = () => decide({verdict: "fine"});
at("junk").onclick = () => decide({verdict: "junk"});
at("alone").onclick = onlyFirst;
at("by").value = localStorage.getItem("by") || "";
at("by").onchange = () => localStorage.setItem("by", at("by").value.trim());
at("detector").onchange = () => { detector = at("detector").value; choose(); };

// The slider.
let control;

async function showThresholds() {
  const {slider} = await json(`/v1/detectors/${encodeURIComponent(detector)}/thresholds`);
  const range = at("threshold");
  at("threshold-section").hidden = !slider.steps;
  if (!slider.steps) return;
  const moved = control && Number(range.value) !== control.at;
  control = slider;
  at("threshold-label").textContent = slider.byPValue ? "False alarms" : "Threshold";
  range.max = slider.steps.length - 1;
  if (!moved) range.value = slider.at;
  slide();
}

function slide() {
  const [limit, flagged, mean, low, high] = control.steps[at("threshold").value];
  const shown = control.byPValue ? percent(limit) : number(limit);
  at("limit").textContent = shown;
  at("threshold").setAttribute("aria-valuetext", shown);
  let text = `${Number(at("threshold").value) === control.at ? "Flags" : "Would flag"} ${flagged.toLocaleString("en")} of the newest ${images(control.images)}.`;
  if (mean !== null) text += ` False alarms: about ${percent(mean)} of in-distribution images`;
  if (mean !== null && low !== null) text += `; with 95% probability between ${percent(low)} and ${percent(high)} in the long run`;
  at("effect").textContent = text + (mean !== null ? "." : "");
}
at("threshold").oninput = slide;
at("reset").onclick = () => { at("threshold").value = control.at; slide(); };

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
          if (!data) continue;
          const came = JSON.parse(data.slice(6));
          if (!source || came.source === source) addFlagged(flaggedOf(came));
          if (!at("queue").hidden && !groups.length) fill().catch(() => {});
        }
      }
    } catch (error) {
      if (!at("login").hidden) return;
    }
    at("state").textContent = "the service does not answer; trying again";
    await new Promise(again => setTimeout(again, 3000));
  }
}

// choose shows the queue, what there is to learn and the slider of a detector.
async function choose() {
  const model = await json("/v2/models/" + encodeURIComponent(detector));
  classes = model.classes;
  reasons.clear();
  undone = [];
  try {
    await fill();
    at("queue").hidden = at("kinds").hidden = false;
    at("found").replaceChildren();
    at("kinds-said").textContent = "";
    for (const item of at("flagged").children) offer(item);
  } catch (error) {
    if (error.status !== 404) throw error; // it remembers nothing
  }
  await Promise.all([showLearning(), showThresholds()]);
  showClasses();
}

async function start() {
  at("login").hidden = true;
  try {
    await showCame();
    const models = await (await ask("/v2/repository/index", {method: "POST"})).json();
    at("detector").replaceChildren(...[...new Set(models.map(m => m.name))].map(name => Object.assign(element("option", name), {value: name})));
    at("of-detector").hidden = at("detector").options.length < 2;
    detector = at("detector").value;
    await choose();
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
setInterval(() => { if (at("login").hidden && !document.hidden) Promise.allSettled([showCame(), control ? showThresholds() : null]); }, 10000);
document.addEventListener("DOMContentLoaded", start);
