// The page of judged images: the threshold, and commands that act on a selection.
"use strict";
(() => {
  const element = (id) => document.getElementById(id);
  const range = element("threshold");
  const control = range && JSON.parse(element("steps").textContent);
  const number = (v) => String(Number(v.toPrecision(4))).replace("-", "−");
  const percent = (share) => number(100 * Number(share.toPrecision(3))) + "%";
  for (const part of document.querySelectorAll(".needs-script")) part.hidden = false;

  const flagged = (item) => item.dataset.verdict === "OOD";

  // Marks what the threshold flags, and says what that costs.
  function move() {
    const [limit, count, mean, low, high] = control.steps[range.value];
    const judged = Number(range.value) === control.at;
    let here = 0;
    for (const item of items) {
      const ood = judged ? item.dataset.ood === "true" : control.byPValue ? Number(item.dataset.p) <= limit + 1e-9 : Number(item.dataset.score) < limit;
      here += ood;
      item.dataset.verdict = ood ? "OOD" : "in distribution";
      const badge = item.querySelector(".badge");
      badge.textContent = item.dataset.verdict;
      badge.classList.toggle("ood", ood);
    }
    const shown = control.byPValue ? percent(limit) : number(limit);
    element("limit").textContent = shown;
    const page = items.length < control.images ? ` (${here} of ${items.length} on this page)` : "";
    const total = judged && !page ? here : count;
    let text = `${judged ? "Flags" : "Would flag"} ${total.toLocaleString("en")} of ${control.images.toLocaleString("en")} images${page}.`;
    if (mean !== null) text += ` False alarms: about ${percent(mean)} of in-distribution images`;
    if (mean !== null && low !== null) text += `; with 95% probability between ${percent(low)} and ${percent(high)} in the long run`;
    element("effect").textContent = text + (mean !== null ? "." : "");
    range.setAttribute("aria-valuetext", shown);
    for (const link of document.querySelectorAll("a[data-page]")) link.hash = judged ? "" : "step=" + range.value;
    applyFilters();
  }
  if (control) {
    const wanted = /^#step=(\d+)$/.exec(location.hash);
    range.value = wanted ? wanted[1] : control.at; // a browser may remember another
    range.addEventListener("input", move);
    element("reset").addEventListener("click", () => { range.value = control.at; move(); });
  }

  // The selected images, or else those that are flagged and shown.
  const act = element("act");
  if (!act) return;
  const picked = () => items.filter((item) => item.querySelector(".pick").checked);
  const target = () => picked().length ? picked() : items.filter((item) => flagged(item) && !item.hidden);
  function tell() {
    const n = picked().length;
    element("chosen").textContent = n ? `${n} selected` : `none selected: ${target().length} flagged images`;
    for (const item of items) item.classList.toggle("picked", item.querySelector(".pick").checked);
    element("copied").hidden = true;
  }
  const pick = (value) => { for (const item of items) if (!value || !item.hidden) item.querySelector(".pick").checked = value; tell(); };
  element("all").addEventListener("click", () => pick(true));
  element("none").addEventListener("click", () => pick(false));
  document.querySelector(".verdicts").addEventListener("change", tell);
  document.addEventListener("filtered", tell);

  const quote = (word) => "'" + word.replace(/'/g, "'\\''") + "'";
  async function copy(button, text) {
    element("copied").textContent = text;
    element("copied").hidden = false;
    const label = button.textContent;
    button.textContent = await copyText(text) ? "Copied" : "Select the text to copy it";
    setTimeout(() => { button.textContent = label; }, 2000);
  }
  element("paths").addEventListener("click", (event) => copy(event.target, target().map((item) => item.dataset.quoted).join("\n")));
  element("command").addEventListener("click", (event) => {
    const at = control ? control.steps[range.value][0] : null;
    const limit = at === null ? "" : control.byPValue ? ` --max-false-alarms ${at}` : ` --threshold=${at}`;
    copy(event.target, `printf '%s\\0' ${target().map((item) => item.dataset.quoted).join(" ")} | ` +
      `mlrbfn detect --detector ${act.dataset.detector}${limit} --move-ood ${quote(element("folder").value)} --null -`);
  });
  if (control) move();
  else tell();
})();
