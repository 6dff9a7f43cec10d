// What every page can do. Without scripts the pages can be read too.
"use strict";

// Sorts tables by a click on a column's name, and has the columns that wait.
for (const table of document.querySelectorAll("table.figures")) {
  const body = table.tBodies[0];
  const original = [...body.rows];
  const heads = [...table.tHead.rows[table.tHead.rows.length - 1].cells].filter((head) => !head.matches(":first-child") || table.tHead.rows.length > 1);
  const groups = [...table.querySelectorAll("th[scope=colgroup]")].flatMap((group, g) => Array(group.colSpan).fill([group, table.querySelectorAll("colgroup")[g + 1]]));
  if (table.querySelector("[data-further]")) {
    const box = Object.assign(document.createElement("input"), { type: "checkbox" });
    const label = document.createElement("label");
    label.append(box, " single sets and further metrics");
    table.parentNode.before(label);
    const show = () => {
      const spans = new Map();
      heads.forEach((head, column) => {
        const hidden = "further" in head.dataset && !box.checked;
        for (const cell of [head, ...original.map((row) => row.cells[column + 1])]) cell.hidden = hidden;
        spans.set(groups[column], (spans.get(groups[column]) || 0) + !hidden);
      });
      for (const [parts, span] of spans) for (const part of parts) Object.assign(part, { hidden: !span }, { [part.matches("th") ? "colSpan" : "span"]: span || 1 });
    };
    box.addEventListener("change", show);
    show();
  }
  heads.forEach((head, column) => {
    const button = document.createElement("button");
    button.type = "button";
    button.textContent = head.textContent;
    head.replaceChildren(button);
    button.addEventListener("click", () => {
      const ways = ["none", "descending", "ascending"];
      if (groups[column]?.[0].textContent.includes("↓")) ways.splice(1, 2, "ascending", "descending"); // the best first
      const order = ways[(ways.indexOf(head.getAttribute("aria-sort") || "none") + 1) % 3];
      heads.forEach((other) => other.removeAttribute("aria-sort"));
      if (order === "none") return body.replaceChildren(...original);
      head.setAttribute("aria-sort", order);
      const sign = order === "descending" ? -1 : 1;
      const key = (row) => row.cells[column + 1].dataset.sort;
      const compare = (a, b) => Number.isNaN(a - b) ? a.localeCompare(b) : a - b;
      body.replaceChildren(...[...original].sort((a, b) =>
        (key(a) === "") - (key(b) === "") || sign * compare(key(a), key(b))));
    });
  });
}

// Copies a text, also where the page is a file and the clipboard is closed to it.
async function copyText(text) {
  try {
    await navigator.clipboard.writeText(text);
    return true;
  } catch {
    const area = document.createElement("textarea");
    area.value = text;
    document.body.append(area);
    area.select();
    const done = document.execCommand("copy");
    area.remove();
    return done;
  }
}

// Adds a button that copies to each block of commands.
for (const block of document.querySelectorAll("pre:not(.bare)")) {
  const button = document.createElement("button");
  button.type = "button";
  button.className = "copy";
  button.textContent = "Copy";
  button.addEventListener("click", async () => {
    button.textContent = await copyText(block.textContent.trim()) ? "Copied" : "Select the text to copy it";
    setTimeout(() => { button.textContent = "Copy"; }, 2000);
  });
  block.before(button);
}

// Items are the images that a filter can hide and that the keyboard goes through.
const items = [...document.querySelectorAll("[data-item]")];

// Shows only the images that fit every filter.
function applyFilters() {
  const filters = [...document.querySelectorAll("[data-filter]")].filter((select) => select.value);
  let shown = 0;
  for (const item of items) {
    item.hidden = !filters.every((select) => select.dataset.filter.split(" ").some((key) => item.dataset[key] === select.value));
    shown += !item.hidden;
  }
  for (const place of document.querySelectorAll("[data-shown]")) place.textContent = `${shown} shown` + (shown < items.length ? `, ${items.length - shown} hidden by the filter` : "");
  document.dispatchEvent(new Event("filtered"));
}
for (const select of document.querySelectorAll("[data-filter]")) select.addEventListener("change", applyFilters);
for (const tools of document.querySelectorAll(".tools")) tools.hidden = false;
if (document.querySelector("[data-filter]")) applyFilters(); // a browser may remember the choice

// Keyboard: j or → goes to the next image, k or ← to the one before, x selects.
for (const item of items) item.tabIndex = -1;
document.addEventListener("keydown", (event) => {
  if (event.defaultPrevented || event.ctrlKey || event.metaKey || event.altKey || event.target.closest("select, textarea, input:not([type=checkbox])")) return;
  if (event.target.matches(".scroll") && event.key.startsWith("Arrow")) return; // which scrolls it
  const now = document.activeElement.closest("[data-item]");
  const step = { j: 1, ArrowRight: 1, k: -1, ArrowLeft: -1 }[event.key];
  if (event.key === "x" && now) {
    now.querySelector("input[type=checkbox]")?.click();
    event.preventDefault();
  }
  if (!step || !items.length) return;
  const seen = items.filter((item) => item.checkVisibility ? item.checkVisibility() : !item.hidden);
  const at = now ? seen.indexOf(now) + step : step > 0 ? 0 : -1;
  const next = seen[Math.min(at, seen.length - 1)];
  if (!next) return;
  next.focus({ preventScroll: true });
  next.scrollIntoView({ block: "nearest" });
  event.preventDefault();
});

// A list with an x for what is ticked, or a file of what is ticked alone.
(() => {
  const form = document.querySelector("[data-review-head]");
  if (!form) return;
  const boxes = [...document.querySelectorAll("[data-review]")];
  const file = form.dataset.reviewFile;
  form.hidden = !boxes.length;
  for (const box of boxes) box.parentNode.hidden = false;
  const tell = () => { form.querySelector("[role=status]").textContent = `${boxes.filter((box) => box.checked).length} of ${boxes.length} ticked`; };
  document.addEventListener("change", tell);
  tell();
  form.querySelector("button").addEventListener("click", () => {
    const lines = boxes.map((box) => file ? (box.checked ? box.dataset.review : "") : box.checked ? box.dataset.review.trimEnd() + "x\n" : box.dataset.review);
    const link = document.createElement("a");
    link.href = "data:text/csv;charset=utf-8," + encodeURIComponent(form.dataset.reviewHead + lines.join(""));
    link.download = file || "list.csv";
    link.click();
    tell();
  });
})();
