"""Debian's Chromium without a window, for the page of view/."""
import shutil

OPTIONS = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-sync",
           "--disable-background-networking", "--disable-component-update", "--window-size=1500,920"]


def installed() -> tuple[str, str] | None:
    """The paths of browser and driver; None if one of them is missing."""
    chromium = next(filter(None, map(shutil.which, ["chromium", "chromium-browser", "google-chrome"])), None)
    driver = shutil.which("chromedriver")
    return (chromium, driver) if chromium and driver else None


def open_browser(folder):
    """Open a browser that has its profile in `folder` and keeps a log of its console; None if none is installed."""
    if not installed():
        return None

    chromium, driver = installed()
    from selenium import webdriver  # here, because few tests need it
    from selenium.webdriver.chrome.service import Service
    options = webdriver.ChromeOptions()
    options.binary_location = chromium
    for option in [*OPTIONS, f"--user-data-dir={folder}"]:
        options.add_argument(option)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    return webdriver.Chrome(options=options, service=Service(driver))
