//! The values of parameters, buffers and constants in an archive.

use super::error::GraphErrorKind::{TooLarge, Weights};
use super::exported::{SymbolicSize, TensorMeta, WeightEntry, WeightTable};
use super::import::{Symbols, tensor_type};
use super::value::{DataType, Graph, GraphInput, GraphWeights, TensorType, WeightTensor};
use super::{GraphError, WEIGHT_BYTES_MAX};

/// The weights and constants of an archive.
pub(super) struct WeightSource<'a> {
    weights: &'a WeightTable,
    constants: &'a WeightTable,
    /// Bytes read so far.
    bytes: u64,
}

/// Reads an entry by its name and its largest size in bytes.
type ReadEntry<'a> = dyn FnMut((&str, u64)) -> Result<Vec<u8>, GraphError> + 'a;

impl<'a> WeightSource<'a> {
    pub(super) fn new(weights: &'a WeightTable, constants: &'a WeightTable) -> Self {
        Self { weights, constants, bytes: 0 }
    }

    /// The tensors of all parameters, buffers and constants of the graph.
    pub(super) fn read_all(
        mut self,
        graph: &Graph,
        entry_of: &mut ReadEntry<'_>,
    ) -> Result<GraphWeights, GraphError> {
        let mut weights = GraphWeights::default();
        for GraphInput { role, tensor } in &graph.inputs {
            if let Some(name) = role.name() {
                weights.tensors.push(self.read(name, tensor, entry_of)?);
            }
        }
        Ok(weights)
    }

    /// The tensor of a parameter, buffer or constant.
    fn read(
        &mut self,
        name: &str,
        wanted: &TensorType,
        entry_of: &mut ReadEntry<'_>,
    ) -> Result<WeightTensor, GraphError> {
        let refuse = |why: String| GraphError::new(Weights, format!("{name}: {why}"));
        let (folder, found) = match (self.weights.config.get(name), self.constants.config.get(name))
        {
            (Some(found), _) => ("weights", found),
            (None, Some(found)) => ("constants", found),
            (None, None) => return Err(refuse("the archive has no values for it".to_owned())),
        };
        let WeightEntry { path_name, use_pickle, tensor_meta } = found;
        if *use_pickle {
            let why = "its values are a pickle, which is code and is not opened: convert it to a plain \
                       dense tensor before the export";
            return Err(refuse(why.to_owned()));
        }
        let Some(meta) = tensor_meta else {
            return Err(refuse("its values have no type".to_owned()));
        };
        let found_type = tensor_type(meta, &mut Symbols::default())?;
        if found_type != *wanted {
            return Err(refuse(format!("its values are {found_type}, and the graph has {wanted}")));
        }
        let Some(sizes) = found_type.fixed_sizes() else {
            return Err(refuse("its sizes are not constant, or too large".to_owned()));
        };
        let bytes = sizes.iter().product::<u64>() * found_type.data_type.bytes() as u64;
        let left = WEIGHT_BYTES_MAX.saturating_sub(self.bytes);
        if bytes > left {
            let why = format!("the weights have more than {WEIGHT_BYTES_MAX} bytes");
            return Err(GraphError::new(TooLarge, why));
        }
        let stored = entry_of((&format!("data/{folder}/{path_name}"), left))?;
        self.bytes += bytes;
        let elements = Strided::new(meta, &sizes).map_err(refuse)?;
        let bytes = elements.gather(&stored, found_type.data_type.bytes()).map_err(refuse)?;
        if !are_finite(found_type.data_type, &bytes) {
            return Err(refuse("one of its values is infinite or not a number".to_owned()));
        }
        Ok(WeightTensor { data_type: found_type.data_type, sizes, bytes })
    }
}

/// Where the elements of a tensor are in its storage.
pub(super) struct Strided {
    offset: usize,
    sizes: Vec<usize>,
    strides: Vec<usize>,
}

impl Strided {
    pub(super) fn new(meta: &TensorMeta, sizes: &[u64]) -> Result<Self, String> {
        let fixed = |size: &SymbolicSize| match size {
            SymbolicSize::AsInt(size) => usize::try_from(*size).ok(),
            SymbolicSize::AsExpr(_) => None,
        };
        let strides = meta.strides.iter().map(fixed).collect::<Option<Vec<usize>>>();
        let strides = strides.filter(|strides| strides.len() == sizes.len());
        let offset = meta.storage_offset.as_ref().map_or(Some(0), fixed);
        let sizes = sizes.iter().map(|&size| usize::try_from(size).ok()).collect::<Option<_>>();
        match (strides, offset, sizes) {
            (Some(strides), Some(offset), Some(sizes)) => Ok(Self { offset, sizes, strides }),
            _ => Err("its strides do not match its sizes".to_owned()),
        }
    }

    /// The elements in order.
    fn gather(&self, stored: &[u8], width: usize) -> Result<Vec<u8>, String> {
        let count = self.check(stored.len(), width)?;
        if count > 0 && self.is_contiguous() {
            return Ok(stored[self.offset * width..][..count * width].to_vec());
        }
        let mut bytes = Vec::with_capacity(count * width);
        for place in self.places() {
            bytes.extend_from_slice(&stored[place * width..][..width]);
        }
        Ok(bytes)
    }

    /// Writes the elements, which are `f32`, to their places: the inverse of [`gather`](Self::gather).
    pub(super) fn scatter(&self, numbers: &[f32], stored: &mut [u8]) -> Result<(), String> {
        const WIDTH: usize = size_of::<f32>();
        self.check(stored.len(), WIDTH)?;
        for (place, number) in self.places().zip(numbers) {
            stored[place * WIDTH..][..WIDTH].copy_from_slice(&number.to_le_bytes());
        }
        Ok(())
    }

    /// Checks that all elements are within an entry of this many bytes. Returns their number.
    fn check(&self, stored: usize, width: usize) -> Result<usize, String> {
        let beyond = || format!("its elements are beyond the {stored} bytes of its entry");
        let count: usize = self.sizes.iter().product();
        if count == 0 {
            return Ok(0);
        }
        let mut last = self.offset;
        for (&size, &stride) in self.sizes.iter().zip(&self.strides) {
            let step = (size - 1).checked_mul(stride).ok_or_else(beyond)?;
            last = last.checked_add(step).ok_or_else(beyond)?;
        }
        let end = last.checked_add(1).and_then(|end| end.checked_mul(width)).ok_or_else(beyond)?;
        if end > stored {
            return Err(beyond());
        }
        // Strides of zero would make any number of elements out of one.
        if count > stored / width {
            return Err(
                "it has more elements than its entry: store it with `.contiguous()`".to_owned()
            );
        }
        Ok(count)
    }

    /// The places of the elements in order, the last dimension first.
    fn places(&self) -> impl Iterator<Item = usize> {
        let count: usize = self.sizes.iter().product();
        (0..count).map(|element| {
            let mut left = element;
            let mut place = self.offset;
            for (&size, &stride) in self.sizes.iter().zip(&self.strides).rev() {
                place += left % size * stride;
                left /= size;
            }
            place
        })
    }

    fn is_contiguous(&self) -> bool {
        let mut expected = 1;
        self.sizes.iter().zip(&self.strides).rev().all(|(&size, &stride)| {
            let fits = size == 1 || stride == expected;
            expected *= size;
            fits
        })
    }
}

/// Whether no element is infinite or not a number: all bits of its exponent are set then.
pub(super) fn are_finite(data_type: DataType, bytes: &[u8]) -> bool {
    let (width, exponent) = match data_type {
        DataType::F16 => (2, 0x7c00),
        DataType::Bf16 => (2, 0x7f80),
        DataType::F32 => (4, 0x7f80_0000),
        DataType::F64 => (8, 0x7ff0_0000_0000_0000),
        _ => return true,
    };
    bytes.chunks_exact(width).all(|element| {
        let bits = element.iter().rev().fold(0_u64, |bits, byte| bits << 8 | u64::from(*byte));
        bits & exponent != exponent
    })
}
