// The page of images that were judged together: a slider over the list.
"use strict";
(() => {
  const element = (id) => document.getElementById(id);
  const range = element("position");
  if (!range) return;
  const steps = JSON.parse(element("steps").textContent);
  const listed = range.getAttribute("value");
  for (const part of document.querySelectorAll(".needs-script")) part.hidden = false;
  const images = (n) => `${n.toLocaleString("en")} ${n === 1 ? "image" : "images"}`;
  const are = (n) => `${n.toLocaleString("en")} ${n === 1 ? "is" : "are"}`;

  // Says what is known of the images up to the position, and fades the others.
  function move() {
    const [together, found, known] = steps[range.value];
    for (const item of items) item.classList.toggle("beyond", Number(item.dataset.together) > Number(together));
    element("limit").textContent = images(found);
    element("effect").textContent = `Of these ${images(found)} at most ${are(known)} known (95%), so that at least ${are(found - known)} new.`;
    range.setAttribute("aria-valuetext", images(found));
  }
  range.value = listed; // a browser may remember another
  range.addEventListener("input", move);
  element("reset").addEventListener("click", () => { range.value = listed; move(); });
  move();
})();
