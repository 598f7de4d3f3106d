//! Where the programs that tests run are: the tools that `./dev test` installs, else PATH.

use std::path::PathBuf;

/// Where `./dev` keeps what it builds and installs.
pub fn cache_folder() -> Option<PathBuf> {
    let folder = |name| std::env::var_os(name).map(PathBuf::from);
    let base = folder("XDG_CACHE_HOME").or_else(|| folder("HOME").map(|home| home.join(".cache")));
    folder("PANDO_CACHE").or_else(|| base.map(|base| base.join("pando")))
}

/// The program, or a failed test that says how to get it.
pub fn find(program: &str) -> PathBuf {
    let installed = cache_folder().map(|cache| cache.join("tools/bin").join(program)).filter(|path| path.is_file());
    installed
        .or_else(|| on_path(program))
        .unwrap_or_else(|| panic!("{program} is neither installed by ./dev test nor on PATH; run ./dev test once"))
}

/// The program on PATH.
pub fn on_path(program: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH")?;
    std::env::split_paths(&path).map(|folder| folder.join(program)).find(|path| path.is_file())
}
