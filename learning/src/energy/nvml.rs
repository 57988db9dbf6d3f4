//! The counter of an NVIDIA GPU, from the management library of its driver, which is loaded at run time.

use nvml_wrapper::Nvml;

use super::{EnergyCounter, EnergyError};

const MILLIJOULES: f64 = 1e3;
/// The GPU of a machine with one; the library numbers GPUs by their place on the bus.
const INDEX: u32 = 0;

/// The counter of the machine's first GPU.
pub(super) struct Gpu {
    library: Nvml,
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
        let name = {
            let device = library.device_by_index(INDEX).map_err(|error| failed("GPU 0", &error))?;
            device.name().map_err(|error| failed("GPU 0", &error))?
        };
        let start = millijoules(&library, &name)?;
        Ok(Self { library, name, start })
    }
}

impl EnergyCounter for Gpu {
    fn name(&self) -> String {
        format!("NVML of {}", self.name)
    }

    fn joules(&mut self) -> Result<f64, EnergyError> {
        let now = millijoules(&self.library, &self.name)?;
        Ok(now.saturating_sub(self.start) as f64 / MILLIJOULES)
    }
}

/// Millijoules since the driver was loaded.
fn millijoules(library: &Nvml, name: &str) -> Result<u64, EnergyError> {
    let device = library.device_by_index(INDEX).map_err(|error| failed(name, &error))?;
    device.total_energy_consumption().map_err(|error| failed(name, &error))
}

fn failed(place: &str, error: &dyn std::fmt::Display) -> EnergyError {
    EnergyError::Failed { place: place.to_owned(), why: error.to_string() }
}
