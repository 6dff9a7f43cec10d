// Shows only the images of one class.
(() => {
  const select = document.getElementById("class");
  const shown = document.getElementById("shown");
  const items = [...document.querySelectorAll("li[data-class]")];
  const apply = () => {
    let n = 0;
    for (const item of items) {
      const fits = !select.value || item.dataset.class === select.value || item.dataset.suggested === select.value;
      item.hidden = !fits;
      n += fits;
    }
    shown.textContent = select.value ? `${n} of ${items.length} images` : "";
  };
  select.addEventListener("change", apply);
  document.getElementById("filter").hidden = false;
  apply(); // a browser may remember the choice
})();
