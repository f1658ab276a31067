# ruff: noqa: INP001 - a script, not a package
"""Screenshots of the admin from headless Chromium: every page that the documentation shows, in light and dark.

    python deploy/screenshots.py --url http://127.0.0.1:8000 --user admin --password ... [--out docs/screenshots]

Needs Debian's `chromium` and `chromium-driver`, and `selenium`. Which tenant, run and so on are shown is found on the
pages themselves, so any fleet with some work will do.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from selenium import webdriver
from selenium.common.exceptions import NoSuchElementException
from selenium.webdriver.chrome.options import Options
from selenium.webdriver.chrome.service import Service
from selenium.webdriver.common.by import By
from selenium.webdriver.support.ui import WebDriverWait

DESKTOP = (1440, 900)
PHONE = (390, 844)
PATIENCE_SECONDS = 20
SETTLE_SECONDS = 0.8

Driver = webdriver.Chrome


@contextmanager
def browser(size: tuple[int, int]) -> Iterator[Driver]:
    """A headless Chromium that is gone afterwards."""
    options = Options()
    options.binary_location = os.environ.get("CHROMIUM", "/usr/bin/chromium")
    for argument in ("--headless=new", "--hide-scrollbars", "--disable-gpu", f"--window-size={size[0]},{size[1]}"):
        options.add_argument(argument)
    if os.geteuid() == 0:
        options.add_argument("--no-sandbox")
    driver = webdriver.Chrome(options, Service(os.environ.get("CHROMEDRIVER", "/usr/bin/chromedriver")))
    try:
        # The window's frame counts in its size even without a screen: the page itself shall have the size asked for.
        metrics = {"width": size[0], "height": size[1], "deviceScaleFactor": 1, "mobile": False}
        driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
        yield driver
    finally:
        driver.quit()


def sign_in(driver: Driver, base: str, user: str, password: str) -> None:
    """Through the sign-in page, as a person would."""
    driver.get(f"{base}/admin/login/?next=/admin/")
    driver.find_element(By.NAME, "username").send_keys(user)
    driver.find_element(By.NAME, "password").send_keys(password)
    driver.find_element(By.CSS_SELECTOR, "button[type=submit]").click()
    WebDriverWait(driver, PATIENCE_SECONDS).until(lambda d: "/login/" not in d.current_url)


def first_link(driver: Driver, base: str, path: str, selector: str) -> str:
    """The address behind the first matching link of a page."""
    driver.get(base + path)
    try:
        return str(driver.find_element(By.CSS_SELECTOR, selector).get_attribute("href"))
    except NoSuchElementException:
        raise SystemExit(f"error: {base}{path} shows nothing to take a picture of; submit some work first.") from None


def find_pages(driver: Driver, base: str) -> dict[str, str]:
    """The pages by the name of their picture. A running run with output if there is one, else the latest."""
    runs = "/admin/admission/run/"
    in_row = "#result_list tbody th a, #result_list tbody td.field-what a"
    try:
        run = first_link(driver, base, f"{runs}?state__exact=running&o=1", in_row)
    except SystemExit:
        run = first_link(driver, base, runs, in_row)
    tenant = first_link(driver, base, "/admin/", "a[data-key^=tenant-]")
    return {
        "fleet": f"{base}/admin/",
        "tenants": f"{base}/admin/admission/tenant/",
        "tenant": tenant,
        "quota": f"{base}/admin/admission/tenant/verb/set-quota/?ids={tenant.rstrip('/').split('/')[-2]}",
        "runs": base + runs,
        "run": run,
        "permits": f"{base}/admin/admission/permit/",
        "replicas": f"{base}/admin/recovery/replica/",
        "runners": f"{base}/admin/runners/runner/",
        "audit": f"{base}/admin/core/auditentry/",
    }


def use_theme(driver: Driver, theme: str) -> None:
    """As the switch in the page's corner does it."""
    driver.execute_script("localStorage.setItem('adminTheme', JSON.stringify(arguments[0]))", theme)


def fill_in(name: str, driver: Driver) -> None:
    """The quota page is shown with its preview: a limit of 1 is filled in and looked at, never confirmed."""
    if name == "quota":
        driver.find_element(By.NAME, "limit").send_keys("1")
        driver.find_element(By.NAME, "reason").send_keys("maintenance of half the fleet")
        driver.find_element(By.CSS_SELECTOR, ".wf-form button[type=submit]").click()


def settled(name: str) -> Callable[[Driver], bool]:
    """What must have arrived before the picture: the page, and the output of a run."""

    def check(driver: Driver) -> bool:
        ready = driver.execute_script(
            "return document.readyState === 'complete' && document.fonts.status === 'loaded'"
        )
        if name != "run":
            return bool(ready)
        note = driver.execute_script("return document.querySelector('[data-log-note]')?.textContent ?? '-'")
        return bool(ready and note)

    return check


def take(driver: Driver, pages: dict[str, str], theme: str, out: Path, suffix: str = "") -> None:
    """One picture of each page."""
    for name, address in pages.items():
        driver.get(address)
        fill_in(name, driver)
        WebDriverWait(driver, PATIENCE_SECONDS).until(settled(name))
        time.sleep(SETTLE_SECONDS)
        target = out / f"{name}-{theme}{suffix}.png"
        driver.save_screenshot(str(target))
        print(target, file=sys.stderr)


def main() -> None:
    """Take them all."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--url", required=True, help="base URL of the web server, e.g. http://127.0.0.1:8000")
    parser.add_argument("--user", required=True)
    parser.add_argument("--password", required=True)
    parser.add_argument("--out", type=Path, default=Path(__file__).resolve().parent.parent / "docs" / "screenshots")
    parser.add_argument("--pages", nargs="*", help="only these, by name")
    arguments = parser.parse_args()
    arguments.out.mkdir(parents=True, exist_ok=True)
    base = arguments.url.rstrip("/")
    for size, suffix in ((DESKTOP, ""), (PHONE, "-phone")):
        with browser(size) as driver:
            sign_in(driver, base, arguments.user, arguments.password)
            pages = find_pages(driver, base)
            if arguments.pages:
                pages = {name: pages[name] for name in arguments.pages}
            if suffix:
                pages = {name: address for name, address in pages.items() if name == "fleet"}
            for theme in ("light", "dark"):
                use_theme(driver, theme)
                take(driver, pages, theme, arguments.out, suffix)


if __name__ == "__main__":
    main()
