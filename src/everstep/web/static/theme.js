// Before anything is painted: the colours that were chosen last time. Without a choice the system decides.
try {
  const theme = localStorage.getItem("everstep.theme");
  if (theme === "light" || theme === "dark") document.documentElement.dataset.theme = theme;
} catch {
  // A browser that keeps nothing shows the colours of the system.
}
