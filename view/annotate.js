"use strict";
const articles = [...document.querySelectorAll("article, #ticked")], links = [...document.querySelectorAll("nav a")];
let here;

// Mark the current block in the menus: the last block that begins at the top of the window or above.
function mark() {
  const above = articles.filter(article => article.getBoundingClientRect().top < 60);
  const now = above.length ? above.at(-1).id : "";
  if (now === here) return;
  here = now;
  for (const link of links) {
    if (link.hash === "#" + here) link.setAttribute("aria-current", "location");
    else link.removeAttribute("aria-current");
  }
  for (const nav of document.querySelectorAll("nav")) {
    const link = nav.querySelector("[aria-current]");
    if (link) nav.scrollTo({ top: link.offsetTop - nav.clientHeight / 3 });
  }
}

const all = [...document.querySelectorAll("details")];
addEventListener("beforeprint", () => { for (const details of all) details.open = true; });
document.getElementById("open").addEventListener("click", () => {
  const open = all.some(details => !details.open);
  for (const details of all) details.open = open;
  document.getElementById("open").textContent = open ? "Hide all values" : "Show all values";
});
for (const nav of document.querySelectorAll("nav")) {
  nav.addEventListener("click", event => { if (event.target.closest("a") && nav.matches(":popover-open")) nav.hidePopover(); });
}
addEventListener("scroll", mark, { passive: true });
addEventListener("resize", mark);
mark();
