//! Random files survive a round trip, and random bytes do no harm.

use proptest::prelude::*;
use waterline_quant::gguf::{Array, NewTensor, Value};
use waterline_quant::{FORMATS, Format, PQ2_0, Q2_0};

use super::{contents, parse, raw, use_everything, write};

fn array() -> impl Strategy<Value = Array> {
    use prop::collection::vec;
    let leaf = prop_oneof![
        vec(any::<u8>(), 0..5).prop_map(Array::U8),
        vec(any::<i16>(), 0..5).prop_map(Array::I16),
        vec(any::<u32>(), 0..5).prop_map(Array::U32),
        vec(-1e30f32..1e30, 0..5).prop_map(Array::F32),
        vec(any::<bool>(), 0..5).prop_map(Array::Bool),
        vec(any::<String>(), 0..5).prop_map(Array::String),
        vec(any::<u64>(), 0..5).prop_map(Array::U64),
        vec(
            any::<f64>().prop_filter("equal to itself", |x| !x.is_nan()),
            0..5
        )
        .prop_map(Array::F64),
    ];
    leaf.prop_recursive(3, 20, 4, |inner| vec(inner, 0..4).prop_map(Array::Array))
}

fn value() -> impl Strategy<Value = Value> {
    prop_oneof![
        any::<u8>().prop_map(Value::U8),
        any::<i8>().prop_map(Value::I8),
        any::<u16>().prop_map(Value::U16),
        any::<i16>().prop_map(Value::I16),
        any::<u32>().prop_map(Value::U32),
        any::<i32>().prop_map(Value::I32),
        (-1e30f32..1e30).prop_map(Value::F32),
        any::<bool>().prop_map(Value::Bool),
        any::<String>().prop_map(Value::String),
        array().prop_map(Value::Array),
        any::<u64>().prop_map(Value::U64),
        any::<i64>().prop_map(Value::I64),
        (-1e300f64..1e300).prop_map(Value::F64),
    ]
}

fn new_tensor() -> impl Strategy<Value = (&'static Format, Vec<usize>)> {
    (0..FORMATS.len(), prop::collection::vec(0usize..4, 0..4)).prop_map(|(format, mut shape)| {
        // Short tensors in Q2_0 do not tell the length of their blocks.
        let format = match FORMATS[format] {
            ambiguous if ambiguous == &Q2_0 => &PQ2_0,
            format => format,
        };
        if let Some(last) = shape.last_mut() {
            *last *= format.block_len;
        } else if format.block_len > 1 {
            shape.push(format.block_len);
        }
        (format, shape)
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn anything_survives_a_round_trip(
        metadata in prop::collection::btree_map("[a-z]{1,6}", value(), 0..8),
        tensors in prop::collection::btree_map("[a-z]{1,6}", new_tensor(), 0..6),
    ) {
        let metadata: Vec<_> = metadata.into_iter().collect();
        let tensors: Vec<_> = tensors
            .into_iter()
            .map(|(name, (format, shape))| NewTensor { name, format, shape })
            .collect();
        let gguf = parse(&write(&metadata, &tensors)).unwrap();
        prop_assert_eq!(&gguf.metadata()[..metadata.len()], &metadata[..]);
        for (i, tensor) in tensors.iter().enumerate() {
            let read = gguf.tensor(&tensor.name).unwrap();
            prop_assert_eq!((read.format, &read.shape), (tensor.format, &tensor.shape));
            prop_assert_eq!(&read.data[..], contents(i, tensor));
        }
    }

    #[test]
    fn random_bytes_are_refused_or_harmless(bytes in prop::collection::vec(any::<u8>(), 0..400), counts in 0u64..4) {
        if let Ok(gguf) = parse(&raw(counts, counts, &[&bytes])) {
            use_everything(&gguf);
        }
    }
}
