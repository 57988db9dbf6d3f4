//! The counter of an NVIDIA GPU, from the management library of its driver, which is loaded at run time.

use nvml_wrapper::error::NvmlError;
use nvml_wrapper::{Device, Nvml};

use super::{EnergyCounter, EnergyError};

const MILLIJOULES: f64 = 1e3;
/// The variable that lists the GPUs of this process, by number or by the first letters of an identifier. The
/// library does not know it, and numbers GPUs by their place on the bus.
const VISIBLE: &str = "CUDA_VISIBLE_DEVICES";

/// Most GPUs that are listed.
const GPUS_LISTED_MAX: u32 = 64;

/// The names of this machine's GPUs and their bytes of memory, for display alone; empty without the library.
pub(super) fn gpus() -> Vec<(String, u64)> {
    let Ok(library) = Nvml::init() else { return Vec::new() };
    let count = library.device_count().unwrap_or_default().min(GPUS_LISTED_MAX);
    let gpu = |number| {
        let device = library.device_by_index(number).ok()?;
        Some((device.name().ok()?, device.memory_info().ok()?.total))
    };
    (0..count).filter_map(gpu).collect()
}

/// The counter of the first GPU of this process.
pub(super) struct Gpu {
    library: Nvml,
    /// As the variable names it.
    gpu: String,
    name: String,
    /// Millijoules when it was opened.
    start: u64,
}

impl Gpu {
    /// # Errors
    /// [`EnergyError`] without the library, and for a GPU older than Volta, which has no counter.
    pub(super) fn open() -> Result<Self, EnergyError> {
        let library =
            Nvml::init().map_err(|error| failed("NVIDIA's management library", &error))?;
        let visible = std::env::var(VISIBLE).unwrap_or_default();
        let gpu = first_gpu(&visible).to_owned();
        let name = device(&library, &gpu).and_then(|device| device.name());
        let name = name.map_err(|error| failed(&format!("GPU {gpu}"), &error))?;
        let mut own = Self { library, gpu, name, start: 0 };
        own.start = own.millijoules()?;
        Ok(own)
    }

    /// Millijoules since the driver was loaded.
    fn millijoules(&self) -> Result<u64, EnergyError> {
        let device = device(&self.library, &self.gpu);
        let energy = device.and_then(|device| device.total_energy_consumption());
        energy.map_err(|error| failed(&self.name, &error))
    }
}

/// The first of the GPUs that the variable lists, or the first of all.
fn first_gpu(visible: &str) -> &str {
    let first = visible.split(',').next().map(str::trim);
    first.filter(|first| !first.is_empty()).unwrap_or("0")
}

fn device<'l>(library: &'l Nvml, gpu: &str) -> Result<Device<'l>, NvmlError> {
    match gpu.parse() {
        Ok(number) => library.device_by_index(number),
        Err(_) => library.device_by_uuid(gpu),
    }
}

impl EnergyCounter for Gpu {
    fn name(&self) -> String {
        format!("NVML of {}", self.name)
    }

    fn joules(&mut self) -> Result<f64, EnergyError> {
        let now = self.millijoules()?;
        Ok(now.saturating_sub(self.start) as f64 / MILLIJOULES)
    }
}

fn failed(place: &str, error: &dyn std::fmt::Display) -> EnergyError {
    EnergyError::Failed { place: place.to_owned(), why: error.to_string() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_visible_gpu_is_measured() {
        for (visible, gpu) in
            [("", "0"), ("1", "1"), ("3,1", "3"), ("GPU-8932f937, 2", "GPU-8932f937")]
        {
            assert_eq!(first_gpu(visible), gpu, "{visible}");
        }
    }
}
