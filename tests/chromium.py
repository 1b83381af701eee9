"""Chromium without a window."""
import shutil

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
