// The page of judged images: a mosaic of which only what one sees is in the document, an image
// in large, the threshold, and commands that act on a selection.
"use strict";
(() => {
  const element = (id) => document.getElementById(id);
  const wall = element("wall");
  if (!wall) return;
  const data = JSON.parse(element("data").textContent);
  element("data").remove();
  const range = element("threshold");
  const control = range && JSON.parse(element("steps").textContent);
  const all = data.items;
  const pictures = [...wall.querySelectorAll("li")].map((li) => li.querySelector("img")?.getAttribute("src") || li.querySelector("svg.thumb use") && document.querySelector(li.querySelector("use").getAttribute("href"))?.getAttribute("href"));
  all.forEach((item, i) => {
    item.i = i;
    if (item.t === "static") item.t = pictures[i];
    item.s = Number(item.s);
    item.v = Number(item.v);
    item.ood = item.o;
  });
  wall.replaceChildren();
  element("bar").hidden = false;

  const number = (v) => String(Number(v.toPrecision(4))).replace("-", "−");
  const percent = (share) => number(100 * Number(share.toPrecision(3))) + "%";
  const count = (n) => n.toLocaleString("en");
  const words = (item) => (item.ood ? "OOD, nearest: " : "") + data.classes[item.c];
  const chance = (p) => p < 0.001 ? "< 0.001" : p.toFixed(3);
  const make = (name, properties, ...children) => {
    const made = Object.assign(document.createElement(name), properties);
    made.append(...children.filter((child) => child !== null));
    return made;
  };

  // What is shown, in rows: a heading, or some images.
  const picked = new Set();
  const gap = 8, caption = 44, heading = 44;
  let shown = [], rows = [], places = new Map(), columns = 1, side = 160, above = 0, focused = -1, anchor = -1;
  const filters = [...document.querySelectorAll("[data-by]")];
  const value = { o: (item) => item.ood ? "OOD" : "in distribution", c: (item) => data.classes[item.c], d: (item) => data.folders[item.d] };
  const groupText = { c: (key) => data.classes[key], d: (key) => data.folders[key], g: (key) => key ? `Look-alikes ${key}` : "Alone" };

  function choose() {
    shown = all.filter((item) => filters.every((f) => !f.value || value[f.dataset.by](item) === f.value));
    const hidden = all.length - shown.length;
    element("shown").textContent = `${count(shown.length)} images shown` + (hidden ? `, ${count(hidden)} hidden by filters` : "");
    arrange();
    tell();
  }

  function arrange() {
    const width = wall.clientWidth;
    columns = Math.max(2, Math.floor((width + gap) / (168 + gap)));
    side = (width - gap * (columns - 1)) / columns;
    const by = element("group").value;
    const groups = new Map();
    for (const item of shown) {
      const key = by ? item[by] : "";
      if (!groups.has(key)) groups.set(key, []);
      groups.get(key).push(item);
    }
    if (by === "g" && groups.has(0)) { // those without a group come last
      const alone = groups.get(0);
      groups.delete(0);
      groups.set(0, alone);
    }
    rows = [];
    places = new Map();
    let y = 0;
    shown = [];
    for (const [key, items] of groups) {
      if (by && groups.size > 1) {
        rows.push({ y, h: heading, text: `${groupText[by](key)} (${count(items.length)})` });
        y += heading;
      }
      for (let at = 0; at < items.length; at += columns) {
        const row = { y, h: side + caption, items: items.slice(at, at + columns) };
        row.items.forEach((item, column) => { places.set(item.i, { row, column, n: shown.length }); shown.push(item); });
        rows.push(row);
        y += side + caption + gap;
      }
    }
    wall.style.height = y + "px";
    above = wall.getBoundingClientRect().top + scrollY;
    for (const li of drawn.values()) li.remove();
    drawn.clear();
    draw();
  }

  // Draws the rows that one sees, and half a screen around them.
  const drawn = new Map();
  function draw() {
    const top = scrollY - above - innerHeight / 2, bottom = top + 2 * innerHeight;
    let from = 0, to = rows.length;
    while (from < to) {
      const middle = (from + to) >> 1;
      if (rows[middle].y + rows[middle].h < top) from = middle + 1; else to = middle;
    }
    const keep = new Set();
    for (let i = from; i < rows.length && rows[i].y < bottom; i++) {
      const row = rows[i];
      for (const item of row.items || [null]) {
        const key = item ? item.i : "row" + i;
        keep.add(key);
        if (!drawn.has(key)) {
          const li = item ? cell(item, row) : make("li", { className: "head", textContent: row.text });
          li.style.transform = `translate(${item ? places.get(item.i).column * (side + gap) : 0}px,${row.y}px)`;
          drawn.set(key, li);
          wall.append(li);
        }
      }
    }
    for (const [key, li] of drawn) {
      if (!keep.has(key) && !li.contains(document.activeElement)) {
        li.remove();
        drawn.delete(key);
      }
    }
  }

  function cell(item) {
    const text = `${words(item)}\np ${chance(item.v)}`;
    const open = make("button", { type: "button", className: "open", tabIndex: item.i === focused || focused < 0 && places.get(item.i).n === 0 ? 0 : -1, title: item.p },
      item.t ? make("img", { src: item.t, alt: "", decoding: "async", draggable: false }) : make("span", { className: "none", textContent: "not shown" }),
      make("span", { className: "hidden", textContent: item.p + ": " }), make("span", { className: "text", textContent: text }));
    open.style.height = side + caption + "px";
    const box = make("input", { type: "checkbox", className: "pick", checked: picked.has(item.i), tabIndex: -1 });
    box.setAttribute("aria-label", "select " + item.p);
    const li = make("li", { className: "cell" + (item.ood ? " ood" : "") + (picked.has(item.i) ? " picked" : "") }, open, box);
    li.dataset.i = item.i;
    li.style.width = side + "px";
    li.setAttribute("aria-setsize", shown.length);
    li.setAttribute("aria-posinset", places.get(item.i).n + 1);
    return li;
  }
  let waiting = false;
  const later = () => { if (!waiting) { waiting = true; requestAnimationFrame(() => { waiting = false; draw(); }); } };
  addEventListener("scroll", later, { passive: true });
  let width = 0;
  new ResizeObserver(() => { above = wall.getBoundingClientRect().top + scrollY; later(); }).observe(element("bar"));
  new ResizeObserver(() => { if (wall.clientWidth !== width) { width = wall.clientWidth; arrange(); } }).observe(wall);

  // The threshold: what it flags, and what that costs.
  function move() {
    const [limit, flagged, mean, low, high] = control.steps[range.value];
    const judged = Number(range.value) === control.at;
    let here = 0;
    for (const item of all) here += item.ood = judged ? item.o : control.byPValue ? item.v <= limit + 1e-9 : item.s < limit;
    const text = control.byPValue ? percent(limit) : number(limit);
    element("limit").textContent = text;
    let says = `${judged ? "Flags" : "Would flag"} ${count(judged && all.length === control.images ? here : flagged)} of ${count(control.images)} images.`;
    if (mean !== null) says += ` False alarms: about ${percent(mean)} of in-distribution images`;
    if (mean !== null && low !== null) says += `; with 95% probability between ${percent(low)} and ${percent(high)} in the long run`;
    element("effect").textContent = says + (mean !== null ? "." : "");
    range.setAttribute("aria-valuetext", text);
    choose();
  }

  // The selected images, or else those that are flagged and shown.
  const target = () => picked.size ? all.filter((item) => picked.has(item.i)) : shown.filter((item) => item.ood);
  function tell() {
    element("chosen").textContent = picked.size ? `· ${count(picked.size)} selected` : `· none selected: commands take ${count(target().length)} flagged images`;
    element("copied").hidden = true;
    for (const [key, li] of drawn) {
      if (!li.dataset.i) continue;
      li.classList.toggle("picked", picked.has(key));
      li.querySelector(".pick").checked = picked.has(key);
    }
  }
  const pick = (i, on) => { if (on) picked.add(i); else picked.delete(i); };
  element("all").addEventListener("click", () => { for (const item of shown) pick(item.i, true); tell(); });
  element("none").addEventListener("click", () => { picked.clear(); tell(); });
  wall.addEventListener("change", (event) => {
    const i = Number(event.target.closest("li").dataset.i);
    pick(i, event.target.checked);
    anchor = i;
    tell();
  });

  // A box drawn with the mouse selects, and with Shift adds.
  let start = null, dragged = false;
  const frame = make("div", { className: "frame", hidden: true });
  wall.after(frame);
  const at = (event) => { const r = wall.getBoundingClientRect(); return [event.clientX - r.left, event.clientY - r.top]; };
  wall.addEventListener("pointerdown", (event) => { if (event.button === 0 && event.pointerType === "mouse" && !event.target.matches(".pick")) { start = at(event); dragged = false; } });
  addEventListener("pointermove", (event) => {
    if (!start) return;
    const [x, y] = at(event), [a, b] = start;
    if (!dragged && Math.hypot(x - a, y - b) < 8) return;
    dragged = true;
    event.preventDefault();
    const r = wall.getBoundingClientRect();
    frame.hidden = false;
    Object.assign(frame.style, { left: r.left + Math.min(a, x) + "px", top: r.top + Math.min(b, y) + "px", width: Math.abs(x - a) + "px", height: Math.abs(y - b) + "px" });
  });
  addEventListener("pointerup", (event) => {
    if (start && dragged) {
      const [x, y] = at(event), [a, b] = start;
      if (!event.shiftKey) picked.clear();
      for (const row of rows) {
        if (!row.items || row.y > Math.max(b, y) || row.y + row.h < Math.min(b, y)) continue;
        row.items.forEach((item, c) => { if (c * (side + gap) < Math.max(a, x) && c * (side + gap) + side > Math.min(a, x)) pick(item.i, true); });
      }
      tell();
    }
    start = null;
    frame.hidden = true;
  });
  wall.addEventListener("click", (event) => {
    const li = event.target.closest("li.cell");
    if (!li || event.target.matches(".pick")) return;
    if (dragged) { dragged = false; return; }
    const i = Number(li.dataset.i);
    if (event.shiftKey && anchor >= 0 && places.has(anchor)) {
      const [from, to] = [places.get(anchor).n, places.get(i).n].sort((p, q) => p - q);
      for (let n = from; n <= to; n++) pick(shown[n].i, true);
      tell();
    } else show(i);
  });

  // The keyboard goes through the images.
  function focus(n) {
    const item = shown[Math.max(0, Math.min(n, shown.length - 1))];
    if (!item) return;
    drawn.get(focused)?.querySelector(".open").setAttribute("tabindex", "-1");
    focused = item.i;
    const { row } = places.get(item.i);
    const top = wall.getBoundingClientRect().top + row.y, bar = getComputedStyle(element("bar")).position === "sticky" ? element("bar").offsetHeight : 0;
    if (top < bar) scrollBy(0, top - bar - 8);
    if (top + row.h > innerHeight) scrollBy(0, top + row.h - innerHeight + 8);
    draw();
    const open = drawn.get(item.i).querySelector(".open");
    open.tabIndex = 0;
    open.focus({ preventScroll: true });
  }
  document.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || element("large").open || event.target.closest("select, textarea, input:not([type=checkbox]), summary, .scroll, pre")) return;
    const li = document.activeElement.closest("#wall li");
    const now = li ? places.get(Number(li.dataset.i)).n : -1;
    if (event.key === "x" && li) { const i = Number(li.dataset.i); pick(i, !picked.has(i)); tell(); return; }
    const step = { j: 1, k: -1, ArrowRight: 1, ArrowLeft: -1 }[event.key] || li && { ArrowDown: columns, ArrowUp: -columns }[event.key];
    if (!step) return;
    focus(now < 0 ? 0 : now + step);
    event.preventDefault();
  });

  // One image in large.
  let large = -1;
  function chart(item) {
    const [low, high] = data.ends, top = 1.1 * Math.max(...data.bars, 1e-9);
    const place = (v) => Math.min(high, Math.max(low, v)), what = data.byPValue ? "p-value" : "score";
    const series = [{ name: "this image", colour: "wrong", marker: "triangle", points: [place(item[data.byPValue ? "v" : "s"]), 0] }, { name: "all images", colour: "c0", width: 1, fill: 0.4, bars: data.bars }];
    if (control) { const x = place(control.steps[range.value][0]); series.push({ name: "threshold", colour: "ink", width: 1.5, dashes: [7, 3], points: [x, 0, x, top] }); }
    return make("div", { className: "chart", role: "img", ariaLabel: "the place of the image among all", spec: { x: { label: what, min: low, max: high }, y: { label: "share, %", min: 0, max: top, percent: true }, series } });
  }
  function show(i) {
    const item = all[i];
    large = i;
    element("large-h").textContent = item.p;
    const picture = make("img", { alt: item.p, src: item.u || item.t || "" });
    picture.addEventListener("error", () => { if (item.t && picture.getAttribute("src") !== item.t) picture.src = item.t; else picture.hidden = true; });
    const map = item.m ? make("img", { className: "overlay", src: item.m, alt: "Map of the region that made the score fall" }) : null;
    if (map) ["left", "top", "width", "height"].forEach((edge, k) => { map.style[edge] = item.x[k] + "%"; });
    element("look").replaceChildren(...[item.t || item.u ? picture : make("p", { className: "none", textContent: "There is no picture of it." }), map].filter(Boolean));
    const parts = make("div", { className: "parts" }, ...(item.b || []).map(([part, v]) => {
      const size = Number(v), share = Math.min(Math.abs(size) / data.full, 1) * 50;
      const fill = make("span", { className: size < 0 ? "low" : "" });
      Object.assign(fill.style, { left: (size < 0 ? 50 - share : 50) + "%", width: (share || 0) + "%" });
      const cut = Math.abs(size) > data.full ? (size < 0 ? "◂" : "▸") : "";
      return make("p", {}, make("span", { textContent: data.parts[part] }), make("span", { className: "track" }, fill),
        make("span", { className: "value", textContent: Number.isNaN(size) ? "–" : (size < 0 ? cut : "") + (size < 0 ? "−" : "+") + Math.abs(size).toFixed(1) + (size < 0 ? "" : cut) }));
    }));
    const near = make("ul", { className: "nearest" }, ...(item.n || []).map(([n, distance]) => {
      const { p, c, t } = data.near[n];
      return make("li", {}, t ? make("img", { className: "thumb", src: t, alt: p }) : make("span", { className: "missing", textContent: "not shown" }), make("span", { textContent: `${c} ${distance}` }));
    }));
    element("said").replaceChildren(make("p", {}, make("span", { className: "badge" + (item.ood ? " ood" : ""), textContent: words(item) }), item.l ? ` label: ${item.l}` : ""),
      make("p", { textContent: item.w }), make("p", { className: "numbers", textContent: `p-value ${chance(item.v)} · confidence ${item.f} · score ${number(item.s)}` }),
      chart(item), parts, item.n?.length ? make("p", { className: "near-head", textContent: "nearest in training" }) : "", near,
      make("p", {}, make("label", {}, Object.assign(make("input", { type: "checkbox", checked: picked.has(i) }), { onchange: (event) => { pick(i, event.target.checked); tell(); } }), " selected"), " ",
        item.u ? make("a", { href: item.u, textContent: "Open the file" }) : ""));
    drawCharts(element("said"));
    if (!element("large").open) element("large").showModal();
  }
  const beside = (step) => { const n = places.get(large)?.n + step; if (shown[n]) show(shown[n].i); };
  element("before").addEventListener("click", () => beside(-1));
  element("after").addEventListener("click", () => beside(1));
  element("large").addEventListener("keydown", (event) => {
    const step = { j: 1, ArrowRight: 1, k: -1, ArrowLeft: -1 }[event.key];
    if (step) { beside(step); event.preventDefault(); }
    if (event.key === "x") element("said").querySelector("input").click();
  });
  element("large").addEventListener("click", (event) => { if (event.target === element("large")) element("large").close(); });
  element("large").addEventListener("close", () => { if (places.has(large)) focus(places.get(large).n); });

  const quote = (word) => "'" + word.replace(/'/g, "'\\''") + "'";
  async function copy(button, text) {
    element("copied").textContent = text;
    element("copied").hidden = false;
    const label = button.textContent;
    button.textContent = await copyText(text) ? "Copied" : "Select the text to copy it";
    setTimeout(() => { button.textContent = label; }, 2000);
  }
  element("paths").addEventListener("click", (event) => copy(event.target, target().map((item) => item.q).join("\n")));
  element("command").addEventListener("click", (event) => {
    const at = control ? control.steps[range.value][0] : null;
    const limit = at === null ? "" : control.byPValue ? ` --max-false-alarms ${at}` : ` --threshold=${at}`;
    copy(event.target, `printf '%s\\0' ${target().map((item) => item.q).join(" ")} | ` +
      `${data.program} detect --detector ${data.detector}${limit} --move-ood ${quote(element("folder").value)} --null -`);
  });

  // At first one sees what is flagged, if anything is.
  if (all.some((item) => item.ood)) filters[0].value = "OOD";
  for (const f of filters) f.addEventListener("change", choose);
  element("group").addEventListener("change", arrange);
  if (!all.some((item) => item.g)) element("group").value = data.folders.length > 1 ? "d" : "";
  if (control) {
    range.value = control.at; // a browser may remember another
    range.addEventListener("input", move);
    element("reset").addEventListener("click", () => { range.value = control.at; move(); });
    move();
  } else choose();
})();
