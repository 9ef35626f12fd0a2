//! Ways to break the library on purpose, in a build with the feature `controls` alone: a test that
//! passes on the broken library shows nothing.

/// Whether the environment variable MWCTL_BREAK names this.
#[cfg(feature = "controls")]
pub fn broken(what: &str) -> bool {
    static BROKEN: std::sync::OnceLock<Option<String>> = std::sync::OnceLock::new();
    BROKEN.get_or_init(|| std::env::var("MWCTL_BREAK").ok()).as_deref() == Some(what)
}

#[cfg(not(feature = "controls"))]
pub const fn broken(_what: &str) -> bool {
    false
}
