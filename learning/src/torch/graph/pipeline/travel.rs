//! Values of a graph as values of a message.
//!
//! A tensor arrives with the sizes, strides and alignment that it has at its sender, so that kernels compute
//! the same bits.

use tch::{Device, Kind, TchError, Tensor};

use super::fault;
use crate::engine::BackendError;
use crate::graph::{DataType, Slot};
use crate::pipeline::{
    FormElements, MESSAGE_ALIGNMENT, MessageError, PipelineTensor, PipelineValue, TensorForm,
};

impl From<MessageError> for BackendError {
    fn from(error: MessageError) -> Self {
        fault(error.to_string())
    }
}

/// The types of a graph's tensors.
const DATA_TYPES: [DataType; 10] = [
    DataType::F32,
    DataType::I64,
    DataType::Bool,
    DataType::F64,
    DataType::I32,
    DataType::U8,
    DataType::I8,
    DataType::I16,
    DataType::F16,
    DataType::Bf16,
];

/// A value as one of a message.
pub(super) fn to_message(slot: &Slot) -> Result<PipelineValue, BackendError> {
    Ok(match slot {
        Slot::Empty => PipelineValue::Absent,
        Slot::Tensor(tensor) => PipelineValue::Tensor(pack(tensor)?),
        Slot::Tensors(tensors) => {
            PipelineValue::Tensors(tensors.iter().map(pack).collect::<Result<_, _>>()?)
        }
        Slot::Int(integer) => PipelineValue::Int(*integer),
        Slot::Float(number) => PipelineValue::Float(*number),
        Slot::Bool(holds) => PipelineValue::Bool(*holds),
    })
}

/// The value of a message; its tensors are leaves.
pub(super) fn from_message(value: &PipelineValue, device: Device) -> Result<Slot, BackendError> {
    Ok(match value {
        PipelineValue::Absent => Slot::Empty,
        PipelineValue::Tensor(tensor) => Slot::Tensor(leaf(tensor, device)?),
        PipelineValue::Tensors(tensors) => {
            let tensors = tensors.iter().map(|tensor| leaf(tensor, device));
            Slot::Tensors(tensors.collect::<Result<_, _>>()?)
        }
        PipelineValue::Int(integer) => Slot::Int(*integer),
        PipelineValue::Float(number) => Slot::Float(*number),
        PipelineValue::Bool(holds) => Slot::Bool(*holds),
    })
}

fn leaf(packed: &PipelineTensor, device: Device) -> Result<Tensor, BackendError> {
    let tensor = unpack(packed, device)?;
    Ok(if packed.has_gradient { tensor.f_set_requires_grad(true)? } else { tensor })
}

/// A tensor as one of a message.
pub(super) fn pack(tensor: &Tensor) -> Result<PipelineTensor, BackendError> {
    let has_gradient = tensor.requires_grad();
    let tensor = tensor.f_detach()?;
    let form = form_of(&tensor)?;
    let elements = match form.elements()? {
        FormElements::Distinct(_) => distinct(&tensor)?.f_contiguous()?,
        // From the own first element on.
        FormElements::Span(count) => {
            tensor.f_as_strided([count.cast_signed()], [1], None)?.f_contiguous()?
        }
    };
    let mut bytes = vec![0; elements.numel() * form.data_type.bytes()];
    if !bytes.is_empty() {
        // A dimension of one element may have another stride than 1.
        let count = elements.numel() as i64;
        let flat = elements.f_to_device(Device::Cpu)?.f_as_strided([count], [1], None)?;
        let flat = flat.f_view_dtype(Kind::Uint8)?;
        let length = bytes.len();
        flat.f_copy_data_u8(&mut bytes, length)?;
    }
    Ok(PipelineTensor { form, has_gradient, bytes })
}

/// One element along each dimension of stride 0.
fn distinct(tensor: &Tensor) -> Result<Tensor, TchError> {
    let mut own = tensor.shallow_clone();
    for (dimension, stride) in tensor.stride().into_iter().enumerate() {
        if stride == 0 && own.size()[dimension] > 1 {
            own = own.f_narrow(dimension as i64, 0, 1)?;
        }
    }
    Ok(own)
}

/// The bytes of a tensor in a message.
pub(super) fn message_bytes(tensor: &Tensor) -> Result<u64, BackendError> {
    let form = form_of(tensor)?;
    Ok(form.elements()?.count() * form.data_type.bytes() as u64)
}

fn form_of(tensor: &Tensor) -> Result<TensorForm, BackendError> {
    let kind = tensor.f_kind()?;
    let found = DATA_TYPES.iter().find(|known| known.kind() == kind);
    let &data_type = found.ok_or_else(|| fault(format!("no tensor of {kind:?} can travel")))?;
    let unsigned = |numbers: Vec<i64>| numbers.into_iter().map(|number| number as u64).collect();
    let place = tensor.data_ptr() as usize % usize::from(MESSAGE_ALIGNMENT);
    // Of an empty tensor no element has a place.
    let offset = if tensor.numel() == 0 { 0 } else { place as u8 };
    let (sizes, strides) = (unsigned(tensor.size()), unsigned(tensor.stride()));
    Ok(TensorForm { data_type, sizes, strides, offset })
}

/// Elements of the memory of a tensor that any message may have, and those for each of its bytes: a view of
/// some rows of a tensor has gaps.
const SPAN_MIN: u64 = 1 << 20;
const SPAN_FACTOR_MAX: u64 = 1 << 12;

/// The tensor of a message, without gradients.
pub(super) fn unpack(packed: &PipelineTensor, device: Device) -> Result<Tensor, BackendError> {
    let form = &packed.form;
    let (elements, width) = (form.elements()?, form.data_type.bytes());
    if elements.count() * width as u64 != packed.bytes.len() as u64 {
        return Err(fault("a tensor of a message has other bytes than its sizes"));
    }
    let kind = form.data_type.kind();
    let signed = |numbers: &[u64]| -> Vec<i64> {
        numbers.iter().map(|&number| number.cast_signed()).collect()
    };
    let (sizes, strides) = (signed(&form.sizes), signed(&form.strides));
    let offset = usize::from(form.offset) / width;
    let span = form.span()?;
    if span > SPAN_MIN.max(SPAN_FACTOR_MAX * packed.bytes.len() as u64) {
        return Err(fault("a tensor of a message has too much memory for its elements"));
    }
    let length = offset as i64 + span.cast_signed();
    let memory = Tensor::f_zeros([length], (kind, device))?;
    if !packed.bytes.is_empty() {
        let count = elements.count().cast_signed();
        let given = Tensor::f_from_data_size(&packed.bytes, &[count], kind)?;
        let own = match elements {
            FormElements::Span(_) => memory.f_narrow(0, offset as i64, count)?,
            FormElements::Distinct(_) => {
                let expanded = |(&size, &stride): (&i64, &i64)| if stride == 0 { 1 } else { size };
                let sizes: Vec<i64> = sizes.iter().zip(&strides).map(expanded).collect();
                memory.f_as_strided(&sizes, &strides, offset as i64)?
            }
        };
        own.shallow_clone().f_copy_(&given.f_to_device(device)?.f_reshape(own.size())?)?;
    }
    Ok(memory.f_as_strided(&sizes, &strides, offset as i64)?.f_detach()?)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(tensor: &Tensor) {
        let packed = pack(tensor).unwrap();
        let found = unpack(&packed, Device::Cpu).unwrap();
        assert_eq!((found.size(), found.stride()), (tensor.size(), tensor.stride()));
        let place = |tensor: &Tensor| tensor.data_ptr() as usize % 64;
        assert!(tensor.numel() == 0 || place(&found) == place(tensor));
        assert!(found.equal(tensor));
        assert_eq!(message_bytes(tensor).unwrap(), packed.bytes.len() as u64);
    }

    #[test]
    fn tensors_arrive_with_their_values_strides_and_alignment() {
        let base = Tensor::arange(120, (Kind::Float, Device::Cpu));
        let cube = base.view([4, 5, 6]);
        check(&base);
        check(&cube.transpose(0, 2));
        check(&cube.select(2, 3));
        check(&cube.narrow(1, 2, 2));
        check(&base.narrow(0, 7, 1).expand([5, 3], false));
        check(&base.unfold(0, 4, 2));
        check(&base.narrow(0, 9, 50).unfold(0, 4, 2));
        check(&base.narrow(0, 5, 0));
        check(&Tensor::from(2.5_f32));
        for kind in [Kind::Bool, Kind::Int64, Kind::Uint8, Kind::Half, Kind::BFloat16, Kind::Double]
        {
            check(&cube.fmod(2.0).to_kind(kind).narrow(0, 1, 2));
        }
    }

    #[test]
    fn other_bytes_than_those_of_the_sizes_are_refused() {
        let mut packed = pack(&Tensor::from_slice(&[1_i64, 2])).unwrap();
        packed.bytes.pop();
        assert!(unpack(&packed, Device::Cpu).is_err());
    }
}
