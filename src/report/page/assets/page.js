// Behaviour of a study's page: copy buttons, selectors, links to trials, and charts that follow the window, the colour
// scheme and the printer.
"use strict";

(() => {
  window.setpointDrawAll = () => StudyCharts.drawAll();

  const status = document.createElement("p");
  status.className = "visually-hidden";
  status.id = "copy-status";
  status.setAttribute("role", "status");
  status.setAttribute("aria-live", "polite");
  document.body.append(status);

  // Copies without the clipboard API, which browsers only offer on HTTPS, on files and on this host.
  function copyBySelection(element) {
    const range = document.createRange();
    range.selectNodeContents(element);
    const selection = getSelection();
    selection.removeAllRanges();
    selection.addRange(range);
    return document.execCommand("copy");
  }

  async function copy(button) {
    const element = document.getElementById(button.dataset.copy);
    let isCopied = false;
    try {
      await navigator.clipboard.writeText(element.textContent);
      isCopied = true;
    } catch {
      isCopied = copyBySelection(element);
    }
    status.textContent = "";
    status.textContent = isCopied ? "Copied." : "Not copied: the text is selected, press Ctrl+C.";
    button.textContent = isCopied ? "Copied" : "Selected";
    clearTimeout(button.timer);
    button.timer = setTimeout(() => (button.textContent = "Copy"), 2000);
  }

  // Opens the table of all trials for a link to one of its rows.
  function openTarget(hash) {
    const target = hash.length > 1 ? document.getElementById(decodeURIComponent(hash.slice(1))) : null;
    const details = target?.closest("details");
    if (details) details.open = true;
  }

  document.addEventListener("click", (event) => {
    const button = event.target.closest("button.copy");
    if (button) copy(button);
    const link = event.target.closest('a[href^="#"]');
    if (link) openTarget(link.getAttribute("href"));
  });
  document.addEventListener("change", (event) => {
    if (event.target.matches("select[id]")) StudyCharts.select(event.target.id, event.target.value);
  });

  let width = 0;
  let waiting = 0;
  addEventListener("resize", () => {
    if (innerWidth === width) return;
    width = innerWidth;
    cancelAnimationFrame(waiting);
    waiting = requestAnimationFrame(() => StudyCharts.redraw());
  });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => StudyCharts.redraw());

  // Charts have the width of A4 paper without margins, and the light colours. Short details are printed as well.
  const paper = 660;
  let opened = [];
  addEventListener("beforeprint", () => {
    document.documentElement.dataset.print = "";
    opened = [...document.querySelectorAll("details[data-printed]:not([open])")];
    for (const details of opened) details.open = true;
    StudyCharts.drawAll(paper);
  });
  addEventListener("afterprint", () => {
    delete document.documentElement.dataset.print;
    for (const details of opened) details.open = false;
    StudyCharts.redraw();
  });

  // Marks the section that is being read in the list of sections.
  const links = new Map([...document.querySelectorAll(".contents a")].map((link) => [link.getAttribute("href").slice(1), link]));
  const mark = () => {
    const read = [...links.keys()].filter((id) => (document.getElementById(id)?.getBoundingClientRect().top ?? Infinity) < innerHeight * 0.2).at(-1);
    for (const [id, link] of links) {
      if (id === read) link.setAttribute("aria-current", "true");
      else link.removeAttribute("aria-current");
    }
  };
  let marking = 0;
  addEventListener("scroll", () => {
    cancelAnimationFrame(marking);
    marking = requestAnimationFrame(mark);
  }, { passive: true });

  openTarget(location.hash);
  mark();
  StudyCharts.start();
})();
