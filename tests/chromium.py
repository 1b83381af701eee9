"""Chromium without a window, and what is asked of the pages of view/ in it."""
import shutil

# The lowest contrast between a text on the page and its background, and that text. Backgrounds may be translucent.
CONTRAST = """
const numbers = color => color.match(/[\\d.]+/g).map(Number);
const linear = v => v <= .04045 ? v / 12.92 : ((v + .055) / 1.055) ** 2.4;
const light = ([r, g, b]) => .2126 * linear(r / 255) + .7152 * linear(g / 255) + .0722 * linear(b / 255);
const behind = element => {
  const [r, g, b, alpha = 1] = numbers(getComputedStyle(element).backgroundColor);
  const below = alpha < 1 ? behind(element.parentElement) : [0, 0, 0];
  return [r, g, b].map((v, k) => alpha * v + (1 - alpha) * below[k]);
};
return [...document.body.querySelectorAll("*:not(script, svg *, :disabled)")]
  .filter(element => [...element.childNodes].some(node => node.nodeType === Node.TEXT_NODE && node.data.trim()))
  .map(element => {
    const [dark, bright] = [numbers(getComputedStyle(element).color), behind(element)].map(light).sort((a, b) => a - b);
    return [(bright + .05) / (dark + .05), element.textContent];
  }).sort((a, b) => a[0] - b[0])[0];
"""

OPTIONS = """--headless --no-sandbox --disable-gpu --disable-quic --no-first-run --disable-sync
    --disable-background-networking --disable-component-update""".split()


def open_browser(folder):
    """Open a browser that has its profile in `folder` and keeps a log of its console; None if none is installed."""
    chromium = shutil.which("chromium") or shutil.which("google-chrome")
    driver = shutil.which("chromedriver")
    if not (chromium and driver):
        return None

    from selenium import webdriver  # here, because few tests need it
    options = webdriver.ChromeOptions()
    options.binary_location = chromium
    for option in [*OPTIONS, f"--user-data-dir={folder}"]:
        options.add_argument(option)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    return webdriver.Chrome(options, webdriver.ChromeService(driver))
