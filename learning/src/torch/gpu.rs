//! Loading of CUDA support into a program that has the CPU library of libtorch.
//!
//! `libtorch_cuda.so` registers its kernels at load time, and libtorch looks for them when the
//! first tensor is created. So the library is loaded before that, if it exists.

use std::error::Error as _;
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use libloading::os::unix::{Library, RTLD_GLOBAL, RTLD_NOW};

use super::binding;

/// The required version of libtorch; the build checks it.
pub const LIBTORCH_VERSION: &str = "2.11.0";
/// The environment variable for a folder with `libtorch_cuda.so`.
const FOLDER_VARIABLE: &str = "FLORIN_TORCH_CUDA";
const CUDA_LIBRARY: &str = "libtorch_cuda.so";
const CPU_LIBRARY: &str = "libtorch_cpu.so";

/// One location that was searched for CUDA support.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LibraryAttempt {
    /// The file.
    pub path: PathBuf,
    /// The outcome as text.
    pub outcome: String,
}

/// The available libtorch and its GPUs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TorchProbe {
    /// The version of libtorch.
    pub version: &'static str,
    /// Number of usable GPUs.
    pub gpus: usize,
    /// Whether cuDNN is available.
    pub cudnn: bool,
    /// The CUDA library, if one was loaded.
    pub library: Option<PathBuf>,
    /// The locations searched, in order.
    pub tried: Vec<LibraryAttempt>,
}

impl fmt::Display for TorchProbe {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "libtorch {}, {} GPUs", self.version, self.gpus)?;
        for LibraryAttempt { path, outcome } in &self.tried {
            write!(f, "; {}: {outcome}", path.display())?;
        }
        Ok(())
    }
}

/// Searches for GPUs, once per process; later calls return the same result. Call it before the
/// first tensor is created.
pub fn probe() -> &'static TorchProbe {
    static PROBE: OnceLock<TorchProbe> = OnceLock::new();
    PROBE.get_or_init(|| {
        // The CUDA library registers its kernels with libtorch.
        if let Err(outcome) = binding::load() {
            let tried = vec![LibraryAttempt { path: CPU_LIBRARY.into(), outcome }];
            let (version, gpus) = (LIBTORCH_VERSION, 0);
            return TorchProbe { version, gpus, cudnn: false, library: None, tried };
        }
        let (library, tried) = load_cuda();
        let gpus = usize::try_from(tch::Cuda::device_count()).unwrap_or(0);
        let cudnn = gpus > 0 && tch::Cuda::cudnn_is_available();
        TorchProbe { version: LIBTORCH_VERSION, gpus, cudnn, library, tried }
    })
}

/// Loads the first CUDA library that is found; returns it and the locations searched.
fn load_cuda() -> (Option<PathBuf>, Vec<LibraryAttempt>) {
    if let Some(path) = mapped_library(CUDA_LIBRARY) {
        let outcome = "already loaded".to_owned();
        return (Some(path.clone()), vec![LibraryAttempt { path, outcome }]);
    }
    let mut tried: Vec<LibraryAttempt> = Vec::new();
    for path in candidates() {
        if tried.iter().any(|attempt| attempt.path == path) {
            continue;
        }
        // The dynamic loader resolves a name without a folder.
        let named = path.parent().is_some_and(|folder| folder != Path::new(""));
        let loaded = match named && !path.exists() {
            true => Err("not found".to_owned()),
            false => open(&path).map_err(|why| match named {
                true => format!("cannot be loaded: {why}"),
                false => format!("not in the system's library folders ({why})"),
            }),
        };
        match loaded {
            Ok(()) => {
                tried.push(LibraryAttempt { path: path.clone(), outcome: "loaded".to_owned() });
                return (Some(path), tried);
            }
            Err(outcome) => tried.push(LibraryAttempt { path, outcome }),
        }
    }
    (None, tried)
}

/// Candidate locations of the CUDA library: the folder in FLORIN_TORCH_CUDA, LIBTORCH, the folder
/// of the loaded CPU library, and the dynamic loader's search path.
fn candidates() -> Vec<PathBuf> {
    let folder = |variable: &str| std::env::var_os(variable).filter(|value| !value.is_empty());
    let named = folder(FOLDER_VARIABLE).map(PathBuf::from);
    let libtorch = folder("LIBTORCH").map(|value| Path::new(&value).join("lib"));
    let beside = mapped_library(CPU_LIBRARY).and_then(|path| path.parent().map(Path::to_owned));
    let folders = [named, libtorch, beside];
    let mut paths: Vec<PathBuf> =
        folders.into_iter().flatten().map(|folder| folder.join(CUDA_LIBRARY)).collect();
    paths.push(CUDA_LIBRARY.into());
    paths
}

/// The file of this name that is mapped into this process; `None` if the system does not list
/// mappings.
fn mapped_library(name: &str) -> Option<PathBuf> {
    let maps = std::fs::read_to_string("/proc/self/maps").ok()?;
    let path = maps.lines().filter_map(|line| line.find('/').map(|at| &line[at..]));
    path.map(PathBuf::from).find(|path| path.file_name().is_some_and(|file| file == name))
}

/// Loads a library and never unloads it.
fn open(path: &Path) -> Result<(), String> {
    #[expect(
        unsafe_code,
        reason = "loading a library runs its initialisers, so it has no safe interface"
    )]
    // SAFETY: the file is libtorch's own CUDA library, whose initialisers only register kernels
    // with the loaded CPU library. RTLD_NOW rejects a library of another version, whose symbols are
    // missing, before any of its code runs. It is never unloaded, so no pointer dangles.
    let library = unsafe { Library::open(Some(path), RTLD_NOW | RTLD_GLOBAL) };
    match library {
        Ok(library) => {
            std::mem::forget(library);
            Ok(())
        }
        Err(error) => {
            // The source is the dynamic loader's own message.
            let why = error.source().map_or_else(|| error.to_string(), ToString::to_string);
            Err(why.lines().next().unwrap_or_default().to_owned())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_probe_lists_its_attempts_and_is_cached() {
        let first = probe();
        assert_eq!(first.version, "2.11.0");
        assert!(!first.tried.is_empty(), "{first}");
        assert!(first.to_string().contains(CUDA_LIBRARY), "{first}");
        assert_eq!(first, probe());
    }

    #[test]
    fn opening_a_file_that_is_not_a_library_returns_an_error() {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), b"not a library").unwrap();
        let why = open(file.path()).unwrap_err();
        assert!(why.contains(file.path().to_str().unwrap()), "{why} does not name the file");
    }

    #[test]
    fn the_loaded_cpu_library_is_found() {
        let path = mapped_library(CPU_LIBRARY).unwrap();
        assert!(path.is_absolute() && path.exists());
    }
}
