//! Where the programs that tests run are: the tools that `./dev test` installs, else PATH.

use std::path::PathBuf;

/// The program, or a failed test that says how to get it.
pub fn find(program: &str) -> PathBuf {
    let cache = std::env::var_os("PANDO_CACHE").map(PathBuf::from).or_else(|| {
        let base = std::env::var_os("XDG_CACHE_HOME").map(PathBuf::from);
        let base = base.or_else(|| std::env::var_os("HOME").map(|home| PathBuf::from(home).join(".cache")));
        base.map(|base| base.join("pando"))
    });
    let installed = cache.map(|cache| cache.join("tools/bin").join(program)).filter(|path| path.is_file());
    installed
        .or_else(|| on_path(program))
        .unwrap_or_else(|| panic!("{program} is neither installed by ./dev test nor on PATH; run ./dev test once"))
}

/// The program on PATH.
pub fn on_path(program: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH")?;
    std::env::split_paths(&path).map(|folder| folder.join(program)).find(|path| path.is_file())
}
