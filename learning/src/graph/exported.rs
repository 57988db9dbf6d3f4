//! The description of a graph in an archive, as PyTorch's `torch/_export/serde/schema.py` defines
//! it, version 8. Fields that a graph does not need are skipped.

use std::collections::BTreeMap;
use std::fmt;
use std::marker::PhantomData;

use serde::Deserialize;
use serde::de::{self, IgnoredAny, MapAccess, Visitor};

use super::LIST_MAX;

/// Major version of the schema.
pub(super) const SCHEMA_MAJOR: u32 = 8;

#[derive(Debug, Deserialize)]
pub(super) struct SchemaVersion {
    pub(super) major: u32,
    pub(super) minor: u32,
}

/// The version alone, read before everything else.
#[derive(Debug, Deserialize)]
pub(super) struct VersionOnly {
    pub(super) schema_version: SchemaVersion,
}

#[derive(Debug, Deserialize)]
pub(super) struct ExportedProgram {
    pub(super) graph_module: GraphModule,
}

#[derive(Debug, Deserialize)]
pub(super) struct GraphModule {
    pub(super) graph: ExportedGraph,
    pub(super) signature: Signature,
}

#[derive(Debug, Deserialize)]
pub(super) struct ExportedGraph {
    pub(super) inputs: Vec<Tagged>,
    pub(super) outputs: Vec<Tagged>,
    pub(super) nodes: Vec<ExportedNode>,
    #[serde(default)]
    pub(super) tensor_values: BTreeMap<String, TensorMeta>,
    #[serde(default)]
    pub(super) custom_obj_values: BTreeMap<String, IgnoredAny>,
}

#[derive(Debug, Deserialize)]
pub(super) struct ExportedNode {
    pub(super) target: String,
    pub(super) inputs: Vec<NamedArgument>,
    pub(super) outputs: Vec<Tagged>,
    #[serde(default)]
    pub(super) metadata: Metadata,
}

#[derive(Debug, Default, Deserialize)]
pub(super) struct Metadata {
    #[serde(default)]
    pub(super) stack_trace: Option<String>,
}

#[derive(Debug, Deserialize)]
pub(super) struct NamedArgument {
    pub(super) name: String,
    pub(super) arg: Tagged,
}

#[derive(Debug, Deserialize)]
pub(super) struct Signature {
    pub(super) input_specs: Vec<InputSpec>,
    pub(super) output_specs: Vec<OutputSpec>,
}

#[derive(Debug, Deserialize)]
pub(super) struct Named {
    pub(super) name: String,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum InputSpec {
    UserInput { arg: Tagged },
    Parameter { arg: Named, parameter_name: String },
    Buffer { arg: Named, buffer_name: String },
    TensorConstant { arg: Named, tensor_constant_name: String },
    CustomObj(IgnoredAny),
    Token(IgnoredAny),
    ConstantInput(IgnoredAny),
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum OutputSpec {
    UserOutput(IgnoredAny),
    LossOutput(IgnoredAny),
    BufferMutation(IgnoredAny),
    GradientToParameter(IgnoredAny),
    GradientToUserInput(IgnoredAny),
    UserInputMutation(IgnoredAny),
    Token(IgnoredAny),
    ParameterMutation(IgnoredAny),
}

#[derive(Debug, Deserialize)]
pub(super) struct TensorMeta {
    pub(super) dtype: u32,
    pub(super) sizes: Vec<SymbolicSize>,
    #[serde(default)]
    pub(super) strides: Vec<SymbolicSize>,
    #[serde(default)]
    pub(super) storage_offset: Option<SymbolicSize>,
    #[serde(default)]
    pub(super) layout: u32,
}

#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum SymbolicSize {
    AsInt(i64),
    AsExpr(Expression),
}

#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub(super) struct Expression {
    pub(super) expr_str: String,
}

/// An integer by value or by name.
#[derive(Debug, Clone, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum SymbolicInt {
    AsInt(i64),
    AsName(String),
}

#[derive(Debug, Clone, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum SymbolicFloat {
    AsFloat(RealNumber),
    AsName(String),
}

#[derive(Debug, Clone, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum SymbolicBool {
    AsBool(bool),
    AsName(String),
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum OptionalTensor {
    AsTensor(Named),
    AsNone(IgnoredAny),
}

#[derive(Debug, Deserialize)]
pub(super) struct InnerGraph {
    pub(super) graph: Box<ExportedGraph>,
}

/// A real number. PyTorch writes those that JSON lacks as texts.
#[derive(Debug, Clone, Copy)]
pub(super) struct RealNumber(pub(super) f64);

impl<'de> Deserialize<'de> for RealNumber {
    fn deserialize<D: de::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        #[derive(Deserialize)]
        #[serde(untagged)]
        enum JsonNumber {
            Plain(f64),
            Text(String),
        }
        Ok(Self(match JsonNumber::deserialize(deserializer)? {
            JsonNumber::Plain(number) => number,
            JsonNumber::Text(text) => match text.as_str() {
                "Infinity" => f64::INFINITY,
                "-Infinity" => f64::NEG_INFINITY,
                "NaN" => f64::NAN,
                _ => return Err(de::Error::custom(format!("the number {text:?}"))),
            },
        }))
    }
}

macro_rules! tagged {
    ($($tag:literal $variant:ident($type:ty),)+) => {
        /// An argument: a map with one key, which names its type.
        #[derive(Debug)]
        pub(super) enum Tagged {
            $($variant($type),)+
            /// A type of argument that is not supported.
            Other(String),
        }

        impl<'de> Deserialize<'de> for Tagged {
            fn deserialize<D: de::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                struct TagVisitor;
                impl<'de> Visitor<'de> for TagVisitor {
                    type Value = Tagged;
                    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                        f.write_str("an argument: a map with one key")
                    }
                    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Tagged, A::Error> {
                        let Some(tag) = map.next_key::<String>()? else {
                            return Err(de::Error::custom("an argument without a type"));
                        };
                        let found = match tag.as_str() {
                            $($tag => Tagged::$variant(map.next_value()?),)+
                            _ => {
                                map.next_value::<IgnoredAny>()?;
                                Tagged::Other(tag)
                            }
                        };
                        match map.next_key::<IgnoredAny>()? {
                            None => Ok(found),
                            Some(_) => Err(de::Error::custom("an argument of two types")),
                        }
                    }
                }
                deserializer.deserialize_map(TagVisitor)
            }
        }
    };
}

tagged! {
    "as_none" None(IgnoredAny),
    "as_tensor" Tensor(Named),
    "as_tensors" Tensors(List<Named>),
    "as_int" Int(i64),
    "as_ints" Ints(List<i64>),
    "as_float" Float(RealNumber),
    "as_floats" Floats(List<RealNumber>),
    "as_string" Text(String),
    "as_sym_int" SymInt(SymbolicInt),
    "as_sym_ints" SymInts(List<SymbolicInt>),
    "as_sym_float" SymFloat(SymbolicFloat),
    "as_sym_bool" SymBool(SymbolicBool),
    "as_scalar_type" ScalarType(u32),
    "as_memory_format" MemoryFormat(u32),
    "as_layout" Layout(u32),
    "as_device" Device(IgnoredAny),
    "as_bool" Bool(bool),
    "as_bools" Bools(List<bool>),
    "as_graph" Graph(InnerGraph),
    "as_optional_tensor" OptionalTensor(OptionalTensor),
    "as_optional_tensors" OptionalTensors(List<OptionalTensor>),
}

/// A list with at most [`LIST_MAX`] elements.
#[derive(Debug)]
pub(super) struct List<T>(pub(super) Vec<T>);

impl<'de, T: Deserialize<'de>> Deserialize<'de> for List<T> {
    fn deserialize<D: de::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct ListVisitor<T>(PhantomData<T>);
        impl<'de, T: Deserialize<'de>> Visitor<'de> for ListVisitor<T> {
            type Value = Vec<T>;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "a list of at most {LIST_MAX} elements")
            }
            fn visit_seq<A: de::SeqAccess<'de>>(self, mut list: A) -> Result<Vec<T>, A::Error> {
                let mut elements = Vec::new();
                while let Some(element) = list.next_element()? {
                    if elements.len() == LIST_MAX {
                        let why = format!("a list of more than {LIST_MAX} elements");
                        return Err(de::Error::custom(why));
                    }
                    elements.push(element);
                }
                Ok(elements)
            }
        }
        deserializer.deserialize_seq(ListVisitor(PhantomData)).map(List)
    }
}

/// The table of the weights or constants in an archive.
#[derive(Debug, Deserialize)]
pub(super) struct WeightTable {
    pub(super) config: BTreeMap<String, WeightEntry>,
}

#[derive(Debug, Deserialize)]
pub(super) struct WeightEntry {
    pub(super) path_name: String,
    #[serde(default)]
    pub(super) use_pickle: bool,
    #[serde(default)]
    pub(super) tensor_meta: Option<TensorMeta>,
}
