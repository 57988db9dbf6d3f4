//! Finding a GPU for a program that was linked against libtorch's CPU half.
//!
//! `libtorch_cuda.so` registers its kernels when it is loaded, and libtorch looks for them when
//! the first tensor is made. So it is loaded, where there is one, before that.

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use libloading::os::unix::{Library, RTLD_GLOBAL, RTLD_NOW};

/// The libtorch that this program is made for; the build checks it.
pub const LIBTORCH_VERSION: &str = "2.11.0";
/// The variable that names a folder with `libtorch_cuda.so`.
const FOLDER_VARIABLE: &str = "FLORIN_TORCH_CUDA";
const CUDA_LIBRARY: &str = "libtorch_cuda.so";
const CPU_LIBRARY: &str = "libtorch_cpu.so";

/// One place where CUDA support was looked for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Attempt {
    /// The file.
    pub path: PathBuf,
    /// What came of it, in words.
    pub outcome: String,
}

/// What libtorch has to work with here.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Probe {
    /// Its version.
    pub version: &'static str,
    /// GPUs that it can use.
    pub gpus: usize,
    /// Whether cuDNN is there too.
    pub cudnn: bool,
    /// The CUDA half, if one was loaded.
    pub library: Option<PathBuf>,
    /// Where it was looked for, in order.
    pub tried: Vec<Attempt>,
}

impl fmt::Display for Probe {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "libtorch {}, {} GPUs", self.version, self.gpus)?;
        for Attempt { path, outcome } in &self.tried {
            write!(f, "; {}: {outcome}", path.display())?;
        }
        Ok(())
    }
}

/// Looks for GPUs, once per process; later calls give the same answer. Call it before the first
/// tensor is made.
pub fn probe() -> &'static Probe {
    static PROBE: OnceLock<Probe> = OnceLock::new();
    PROBE.get_or_init(|| {
        let (library, tried) = load_cuda();
        let gpus = usize::try_from(tch::Cuda::device_count()).unwrap_or(0);
        let cudnn = gpus > 0 && tch::Cuda::cudnn_is_available();
        Probe { version: LIBTORCH_VERSION, gpus, cudnn, library, tried }
    })
}

/// Loads the first CUDA half there is. Says where it looked.
fn load_cuda() -> (Option<PathBuf>, Vec<Attempt>) {
    if let Some(path) = mapped(CUDA_LIBRARY) {
        let outcome = "already loaded".to_owned();
        return (Some(path.clone()), vec![Attempt { path, outcome }]);
    }
    let mut tried: Vec<Attempt> = Vec::new();
    for path in candidates() {
        if tried.iter().any(|attempt| attempt.path == path) {
            continue;
        }
        // A name without a folder is the loader's to find.
        let named = path.parent().is_some_and(|folder| folder != Path::new(""));
        let loaded = match named && !path.exists() {
            true => Err("not there".to_owned()),
            false => open(&path),
        };
        match loaded {
            Ok(()) => {
                tried.push(Attempt { path: path.clone(), outcome: "loaded".to_owned() });
                return (Some(path), tried);
            }
            Err(outcome) => tried.push(Attempt { path, outcome }),
        }
    }
    (None, tried)
}

/// Where a CUDA half may be: where the user says, in LIBTORCH, beside the CPU half that runs, and
/// wherever the loader looks.
fn candidates() -> Vec<PathBuf> {
    let folder = |variable: &str| std::env::var_os(variable).filter(|value| !value.is_empty());
    let named = folder(FOLDER_VARIABLE).map(PathBuf::from);
    let libtorch = folder("LIBTORCH").map(|value| Path::new(&value).join("lib"));
    let beside = mapped(CPU_LIBRARY).and_then(|path| path.parent().map(Path::to_owned));
    let folders = [named, libtorch, beside];
    let mut paths: Vec<PathBuf> =
        folders.into_iter().flatten().map(|folder| folder.join(CUDA_LIBRARY)).collect();
    paths.push(CUDA_LIBRARY.into());
    paths
}

/// The file of this name that is mapped into this process; none where the system does not tell.
fn mapped(name: &str) -> Option<PathBuf> {
    let maps = std::fs::read_to_string("/proc/self/maps").ok()?;
    let path = maps.lines().filter_map(|line| line.find('/').map(|at| &line[at..]));
    path.map(PathBuf::from).find(|path| path.file_name().is_some_and(|file| file == name))
}

/// Loads a library for good.
fn open(path: &Path) -> Result<(), String> {
    #[expect(unsafe_code, reason = "loading a library runs its initialisers; there is no safe way")]
    // SAFETY: the file is libtorch's own CUDA half, whose initialisers do nothing but register
    // kernels with the half that runs already. RTLD_NOW refuses one of another version, whose
    // symbols are missing, before any of it runs. It is never unloaded, so nothing dangles.
    let library = unsafe { Library::open(Some(path), RTLD_NOW | RTLD_GLOBAL) };
    match library {
        Ok(library) => {
            std::mem::forget(library);
            Ok(())
        }
        Err(error) => Err(error.to_string().lines().next().unwrap_or_default().to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_probe_says_where_it_looked_and_answers_alike_twice() {
        let first = probe();
        assert_eq!(first.version, "2.11.0");
        assert!(!first.tried.is_empty(), "{first}");
        assert!(first.to_string().contains(CUDA_LIBRARY), "{first}");
        assert_eq!(first, probe());
    }

    #[test]
    fn a_file_that_is_no_library_is_an_outcome_and_no_crash() {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), b"not a library").unwrap();
        assert!(open(file.path()).is_err());
    }

    #[test]
    fn the_cpu_half_is_found_in_the_process() {
        let path = mapped(CPU_LIBRARY).unwrap();
        assert!(path.is_absolute() && path.exists());
    }
}
