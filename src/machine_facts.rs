//! The processor, the memory and the GPUs of this machine as the system states them: for display, never for pay. A listing
//! is proven by a probe.

use serde::Serialize;
use sysinfo::{CpuRefreshKind, MemoryRefreshKind, RefreshKind, System};

const GIB: f64 = 1_073_741_824.0;

/// A GPU as its driver states it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(crate) struct GpuFacts {
    pub(crate) name: String,
    pub(crate) memory_bytes: u64,
}

/// A machine as its system states it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(crate) struct MachineFacts {
    /// The processor's name; empty if the system states none.
    pub(crate) processor: String,
    /// Cores without their threads; `None` if the system does not state them.
    pub(crate) cores: Option<usize>,
    pub(crate) threads: usize,
    pub(crate) memory_bytes: u64,
    pub(crate) memory_available_bytes: u64,
    /// The memory limit of the process's control group, if it is below the machine's.
    pub(crate) memory_limit_bytes: Option<u64>,
    pub(crate) gpus: Vec<GpuFacts>,
}

impl MachineFacts {
    /// Asks the system, and the driver of GPUs.
    pub(crate) fn read() -> Self {
        let kinds = RefreshKind::nothing()
            .with_memory(MemoryRefreshKind::nothing().with_ram())
            .with_cpu(CpuRefreshKind::nothing());
        // A system that cannot be asked has no facts.
        let system = System::new_with_specifics(kinds).ok();
        let cpus = system.as_ref().map(System::cpus).unwrap_or_default();
        let processor = cpus.first().map(|cpu| cpu.brand().trim().to_owned());
        let memory = system.as_ref().map_or(0, System::total_memory);
        let limit = system.as_ref().and_then(System::cgroup_limits);
        let limit = limit.map(|limits| limits.total_memory);
        let gpus = florin_learning::energy::gpus().into_iter();
        Self {
            processor: processor.unwrap_or_default(),
            cores: System::physical_core_count().ok(),
            threads: std::thread::available_parallelism().map_or(1, std::num::NonZero::get),
            memory_bytes: memory,
            memory_available_bytes: system.as_ref().map_or(0, System::available_memory),
            memory_limit_bytes: limit.filter(|limit| *limit < memory),
            gpus: gpus.map(|(name, memory_bytes)| GpuFacts { name, memory_bytes }).collect(),
        }
    }

    /// The processor in a few words.
    pub(crate) fn processor_text(&self) -> String {
        let name = match self.processor.as_str() {
            "" => String::new(),
            name => format!("{name}, "),
        };
        let cores = match self.cores {
            Some(1) => "1 core, ".to_owned(),
            Some(cores) => format!("{cores} cores, "),
            None => String::new(),
        };
        let plural = if self.threads == 1 { "" } else { "s" };
        format!("{name}{cores}{} thread{plural}", self.threads)
    }

    /// The memory in a few words, without the part that is available: that changes at any moment.
    pub(crate) fn memory_text(&self) -> String {
        let limit = self.memory_limit_bytes.map(|limit| format!(", limited to {}", gib(limit)));
        format!("{}{}", gib(self.memory_bytes), limit.unwrap_or_default())
    }

    /// The memory that is available in a few words.
    pub(crate) fn available_text(&self) -> String {
        gib(self.memory_available_bytes)
    }

    /// The GPUs in a few words; `None` without any.
    pub(crate) fn gpus_text(&self) -> Option<String> {
        let gpu =
            |gpu: &GpuFacts| format!("{}, {:.0} GiB", gpu.name, gpu.memory_bytes as f64 / GIB);
        let names: Vec<String> = self.gpus.iter().map(gpu).collect();
        (!names.is_empty()).then(|| names.join("; "))
    }
}

fn gib(bytes: u64) -> String {
    format!("{:.1} GiB", bytes as f64 / GIB)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_machine_is_described_in_a_few_words() {
        let facts = MachineFacts {
            processor: "Some CPU".to_owned(),
            cores: Some(2),
            threads: 4,
            memory_bytes: 8 << 30,
            memory_available_bytes: 3 << 29,
            memory_limit_bytes: Some(4 << 30),
            gpus: vec![GpuFacts { name: "Some GPU".to_owned(), memory_bytes: 16 << 30 }],
        };
        assert_eq!(facts.processor_text(), "Some CPU, 2 cores, 4 threads");
        assert_eq!(facts.memory_text(), "8.0 GiB, limited to 4.0 GiB");
        assert_eq!(facts.available_text(), "1.5 GiB");
        assert_eq!(facts.gpus_text().as_deref(), Some("Some GPU, 16 GiB"));
        let bare = MachineFacts {
            processor: String::new(),
            cores: None,
            threads: 1,
            memory_limit_bytes: None,
            gpus: Vec::new(),
            ..facts
        };
        assert_eq!((bare.processor_text(), bare.gpus_text()), ("1 thread".to_owned(), None));
    }

    #[test]
    fn this_machine_has_threads_and_memory() {
        let facts = MachineFacts::read();
        assert!(facts.threads > 0 && facts.memory_bytes > 0, "{facts:?}");
        assert!(facts.memory_available_bytes <= facts.memory_bytes, "{facts:?}");
    }
}
