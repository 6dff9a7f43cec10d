"use strict";
// Learning from reviews: jobs, what they found, and which version serves.
let watching = "", latest; // the id of the job that is shown, and what is known of it

function table(caption, head, rows, parent) {
  const scroll = element("div", undefined, parent);
  Object.assign(scroll, {className: "scroll", tabIndex: 0});
  scroll.setAttribute("role", "group");
  scroll.setAttribute("aria-label", caption);
  const t = element("table", undefined, scroll);
  t.className = "figures";
  element("caption", caption, t);
  const line = element("tr", undefined, element("thead", undefined, t));
  for (const name of head) element("th", name, line).scope = "col";
  const body = element("tbody", undefined, t);
  for (const [name, ...cells] of rows) {
    const row = element("tr", undefined, body);
    element("th", name, row).scope = "row";
    for (const cell of cells) element("td", cell, row);
  }
}

// tellReviews says what there is to learn from.
async function tellReviews() {
  let answer;
  try {
    answer = await json("/v1/learn?detector=" + encodeURIComponent(detector));
  } catch (error) {
    return error.status !== 404; // it does not learn
  }
  const r = answer.reviews, place = at("reviews");
  place.replaceChildren();
  const about = [`${images(r.images)} can be learned from, and ${images(r.junk)} ${r.junk === 1 ? "is" : "are"} junk, which a detector should flag.`];
  if (r.without_features_count) about.push(`${images(r.without_features_count)} cannot be learned from, as neither the image nor its features were kept.`);
  if (r.disagreed) about.push(`Of ${images(r.disagreed)} different things were said; the latest counts.`);
  element("p", about.join(" "), place);
  if (r.classes.length) table("Reviewed images by class", ["class", "images", "known", "missing"], r.classes.map(c => [c.class, c.images, c.new ? "new" : "known", c.missing ? `${c.missing} more are needed` : ""]), place);
  if (r.without_features.length) {
    const more = element("details", undefined, place);
    element("summary", "Images that cannot be learned from", more);
    for (const w of r.without_features) element("p", `${w.name || w.id}: ${w.why}`, more).className = "path";
  }
  for (const c of r.classes) if (c.new && !said.includes(c.class)) said.push(c.class);
  at("start").disabled = !r.images;
  return true;
}

let versions;

async function showVersions() {
  versions = await json("/v1/detectors/" + encodeURIComponent(detector));
  at("back").hidden = versions.previous === null;
  at("back").textContent = versions.previous === "original" ? "Go back to the original" : "Go back to the version before";
}

async function showLearning() {
  at("learn").hidden = !(await tellReviews());
  if (at("learn").hidden) return;
  await showVersions();
  const last = (await json("/v1/jobs")).jobs.find(job => job.detector === detector);
  if (!last) {
    watching = "";
    at("job").textContent = "";
    at("result").replaceChildren();
  } else if (last.id !== watching) watch(last.id);
  else if (latest?.result) showResult(latest);
}

async function activate(version) {
  try {
    await json(`/v1/detectors/${encodeURIComponent(detector)}/activate`, {version});
    await choose();
    at("job").textContent = versions.active === "original" ? "The original serves." : "The new detector serves.";
  } catch (error) {
    at("job").textContent = error.message;
  }
}

const words = {running: "runs", done: "is done", failed: "failed", cancelled: "was cancelled", interrupted: "was interrupted"};

// watch shows a job until it ends.
async function watch(id) {
  watching = id;
  let shown = "";
  while (watching === id) {
    let job;
    try {
      job = await json("/v1/jobs/" + encodeURIComponent(id));
    } catch (error) {
      at("job").textContent = error.message;
      return;
    }
    latest = job;
    const runs = job.state === "running";
    at("job").textContent = `Learning ${words[job.state]}${job.stage ? ": " + job.stage : ""}.${job.error ? " " + job.error + "." : ""}`;
    at("cancel").hidden = !runs;
    at("start").hidden = runs;
    const state = `${job.ready} ${Boolean(job.result?.curve)}`;
    if (job.result && state !== shown) {
      shown = state;
      showResult(job);
    }
    if (!job.result) at("result").replaceChildren();
    if (!runs) return;
    await new Promise(again => setTimeout(again, 500));
  }
}

const share = (n, of) => of ? `${n} of ${of}` : "–";
const change = (a, b) => a === b ? String(a) : `${a} → ${b}`;

function tallies(caption, t, parent) {
  const row = c => [c.class || "all", c.images, change(c.right_before, c.right_after), change(c.flagged_before, c.flagged_after)];
  table(caption, ["class", "images", "right class", "flagged"], [t.all, ...t.classes].map(row), parent);
}

const verdict = v => (v.ood ? "OOD, like " : "") + v.class;

function changes(title, list, parent) {
  if (!list.length) return;
  const more = element("details", undefined, parent);
  element("summary", `${title}, image by image`, more);
  const place = element("ul", undefined, more);
  place.className = "gallery";
  more.ontoggle = () => { // images are loaded when they are wanted
    if (place.children.length) return;
    for (const c of list) {
      const item = element("li", undefined, place);
      const path = c.image ? "/v1/images/" + c.image : c.row !== undefined ? `/v1/detectors/${encodeURIComponent(detector)}/images/${c.row}` : "";
      picture(path, c.name, item);
      element("div", c.name || "(no name)", item).className = "path";
      if (c.label) element("div", "it is " + c.label, item);
      element("div", `${verdict(c.before)} → ${verdict(c.after)}`, item);
    }
  };
}

function curve(c, parent) {
  element("h3", "Have I labelled enough?", parent);
  const answer = element("p", undefined, parent);
  element("strong", {yes: "Yes. ", no: "Not yet. ", unclear: "That is not clear yet. "}[c.enough], answer);
  answer.append(c.because);
  if (c.points.length < 2) return;
  const last = c.points[c.points.length - 1];
  const line = (name, of, all, style) => ({name, ...style, points: c.points.filter(p => p[all]).flatMap(p => [p.reviews, p[of] / p[all]])});
  const chart = element("div", undefined, parent);
  Object.assign(chart, {className: "chart", role: "img", spec: {
    x: {label: "reviews", min: 0, max: last.reviews}, y: {label: "share, %", min: 0, max: 1, percent: true},
    series: [line("given their class", "right", "images", {colour: "c0", width: 1.8}), line("junk that is flagged", "caught", "junk", {colour: "c1", width: 1.8, dashes: [7, 3]})],
  }});
  chart.setAttribute("aria-label", "Learning curve: " + c.points.map(p => `${p.reviews} reviews: ${share(p.right, p.images)} right, ${share(p.caught, p.junk)} of the junk caught`).join("; "));
  table("Learning curve, on reviewed images that were set aside", ["reviews", "right class", "flagged falsely", "junk caught"],
    c.points.map(p => [p.reviews, share(p.right, p.images), share(p.flagged, p.images), share(p.caught, p.junk)]), parent);
  element("p", "The first is the detector without reviews, the last the new one.", parent).className = "note";
}

function showResult(job) {
  const r = job.result, place = at("result");
  const box = element("div");
  box.className = "result";
  element("p", `It learned from ${images(r.learned)}${r.outliers ? ` and ${images(r.outliers)} of junk` : ""} in ${number(r.seconds)} s; ${images(r.held_out)} were set aside to compare. A new class like the known ones would be noticed with AUROC ${r.before.auroc === null ? "–" : number(r.before.auroc)} before and ${r.after.auroc === null ? "–" : number(r.after.auroc)} now.`, box);
  for (const note of r.notes) element("p", note, box).className = "note";
  const serves = versions.active === job.id;
  const button = element("button", serves ? "It serves" : "Activate the new detector", box);
  button.type = "button";
  button.id = "activate";
  button.disabled = serves || !job.ready;
  button.onclick = () => activate(job.id);
  element("h3", "Old against new", box);
  tallies("Reviewed images that were set aside", r.compare.reviews, box);
  changes("Reviewed images whose verdict changes", r.compare.reviews.changes, box);
  if (r.compare.junk.images) {
    element("p", `Of ${images(r.compare.junk.images)} of junk that were set aside the old detector flags ${r.compare.junk.flagged_before}, the new one ${r.compare.junk.flagged_after}.`, box);
    changes("Junk whose verdict changes", r.compare.junk_changes, box);
  }
  tallies(`Images that training set aside for ${r.compare.of}`, r.compare.calibration, box);
  changes("Those whose verdict changes", r.compare.calibration.changes, box);
  if (r.traffic) {
    element("p", `Of the newest ${images(r.traffic.images)} the verdict of ${r.traffic.changed} would change: ${r.traffic.flagged} would be flagged, and ${r.traffic.unflagged} would not be any more.`, box);
    changes("Newest images whose verdict changes", r.traffic.changes, box);
  } else element("p", "No features of recent images are kept, so that nothing is known of recent traffic.", box).className = "note";
  if (r.curve) curve(r.curve, box);
  place.replaceChildren(box);
  drawCharts(place);
}

at("start").onclick = async () => {
  try {
    const job = await json("/v1/learn?detector=" + encodeURIComponent(detector), undefined, "POST");
    watch(job.id);
  } catch (error) {
    at("job").textContent = error.message;
  }
};
at("cancel").onclick = () => json(`/v1/jobs/${encodeURIComponent(watching)}/cancel`, undefined, "POST").catch(error => { at("job").textContent = error.message; });
at("back").onclick = () => activate("previous");

// The calibration images that score lowest, as they were shown.
let lowest;

at("calibration").ontoggle = async () => {
  if (!at("calibration").open) return;
  const place = at("lowest"), of = detector;
  place.replaceChildren();
  at("trim").disabled = at("trimmed").hidden = true;
  at("trim-said").textContent = "";
  try {
    lowest = await json(`/v1/detectors/${encodeURIComponent(of)}/calibration`);
  } catch (error) {
    at("trim-said").textContent = error.message;
    return;
  }
  for (const i of lowest.images) {
    const item = element("li", undefined, place);
    if (lowest.pictures) picture(`/v1/detectors/${encodeURIComponent(of)}/images/${i.row}`, i.path, item);
    element("div", i.path || `row ${i.row}`, item).className = "path";
    element("div", `${i.label && i.label !== i.class ? i.label + ", given " : ""}${i.class}, p = ${number(i.p_value)}`, item);
    const label = element("label", undefined, item), box = element("input", undefined, label);
    box.type = "checkbox";
    box.value = i.row;
    label.append(" of no class");
  }
  at("trim-said").textContent = `${images(lowest.images.length)} of ${lowest.calibration}, the lowest first.`;
  at("trim").disabled = false;
};

at("trim").onclick = async () => {
  const remove = [...at("lowest").querySelectorAll("input:checked")].map(box => Number(box.value));
  try {
    const made = await json(`/v1/detectors/${encodeURIComponent(lowest.detector)}/calibration`, {sha256: lowest.sha256, reviewed: lowest.images.length, remove});
    at("trim-said").textContent = `Without ${images(remove.length)} the threshold is ${number(made.threshold)}; now it is ${number(lowest.threshold)}.`;
    at("trimmed").hidden = false;
    at("trimmed").onclick = async () => {
      await activate(made.version);
      at("calibration").open = false;
    };
  } catch (error) {
    at("trim-said").textContent = error.message;
  }
};
