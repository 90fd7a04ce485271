//! Forged split files, quantized checkpoints and importance matrices: declared parts that do not exist, scales, codes and counts that do
//! not fit together, and every single bit flipped.

mod stored;

use std::path::{Path, PathBuf};

use stored::{Stored, safetensors};
use waterline_quant::gguf::{Array, Gguf, NewTensor, Value, Writer};
use waterline_quant::imatrix::Importances;
use waterline_quant::safetensors::Checkpoint;
use waterline_quant::{Bytes, F32, FileAccess, Q8_0};

/// Writes a part of a split file with these keys and one tensor.
fn write_part(path: &Path, keys: &[(&str, Value)], tensor: &str) {
    let keys: Vec<_> = keys
        .iter()
        .map(|(name, value)| (name.to_string(), value.clone()))
        .collect();
    let tensor = NewTensor {
        name: tensor.into(),
        format: &F32,
        shape: vec![2],
    };
    let mut writer = Writer::create(path, &keys, &[tensor]).expect("a file");
    writer.write_tensor(&[0; 8]).expect("data");
    writer.finish().expect("a whole file");
}

fn numbers(number: u64, count: u64) -> [(&'static str, Value); 2] {
    [
        ("split.no", Value::U64(number)),
        ("split.count", Value::U64(count)),
    ]
}

fn refused(path: &Path) -> String {
    [FileAccess::Map, FileAccess::Copy]
        .map(|access| Gguf::open_by(path, access).err().expect("a refusal"))
        .map(|error| error.to_string())
        .join("\n")
}

#[test]
fn parts_that_are_claimed_and_not_there_cost_nothing() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = |count: u64| folder.path().join(format!("m-00001-of-{count:05}.gguf"));
    for count in [2, 99_999] {
        write_part(&path(count), &numbers(0, count), "a");
        let said = refused(&path(count));
        let missing = format!("m-00002-of-{count:05}.gguf");
        assert!(said.contains(&missing), "{said}");
    }
    for (number, count) in [(0, 100_000), (0, u64::MAX), (2, 2), (u64::MAX, 3)] {
        write_part(&path(2), &numbers(number, count), "a");
        let said = refused(&path(2));
        assert!(said.contains("split.no"), "{number} of {count}: {said}");
    }
    // A count that is not a number makes a file of one part.
    write_part(&path(2), &[("split.count", Value::from("2"))], "a");
    assert!(Gguf::open(path(2)).is_ok());
}

#[test]
fn a_later_part_is_checked_like_the_first() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = |part: u64| folder.path().join(format!("m-{part:05}-of-00002.gguf"));
    let second = |bytes: &[u8], length: u64| {
        std::fs::write(path(2), bytes).expect("a file");
        let file = std::fs::File::options().write(true).open(path(2));
        let file = file.expect("a file");
        file.set_len(length.max(bytes.len() as u64))
            .expect("a hole");
        let said = Gguf::open(path(1)).err().expect("a refusal").to_string();
        assert!(said.contains("m-00002-of-00002.gguf"), "{said}");
        said
    };
    write_part(&path(1), &numbers(0, 2), "a");
    let header = |tensors: u64, keys: u64| {
        let version = 3u32.to_le_bytes();
        let parts: [&[u8]; 4] = [
            b"GGUF",
            &version,
            &tensors.to_le_bytes(),
            &keys.to_le_bytes(),
        ];
        parts.concat()
    };
    // Counts that would fit into a hole do not reserve memory.
    let said = second(&header(0, (12 << 30) / 13 - 2), 12 << 30);
    assert!(said.contains("metadata count"), "{said}");
    let said = second(&header((12 << 30) / 24 - 1, 0), 12 << 30);
    assert!(said.contains("tensor count"), "{said}");
    assert!(second(b"", 0).contains("four bytes"));
    assert!(second(b"GGUF", 0).contains("version"));
    // Wrong part numbers, and a wrong number of parts.
    for keys in [numbers(0, 2), numbers(1, 3), numbers(7, 2)] {
        write_part(&path(2), &keys, "b");
        let bytes = std::fs::read(path(2)).expect("a file");
        let said = second(&bytes, 0);
        assert!(said.contains("expected part 1 of 2"), "{said}");
    }
    // With the second part repaired, wrong tensor counts in the first part are found.
    write_part(&path(2), &numbers(1, 2), "b");
    let count = |count: u64| ("split.tensors.count", Value::U64(count));
    for wrong in [0, 1, 3, u64::MAX] {
        let keys = [&numbers(0, 2)[..], &[count(wrong)]].concat();
        write_part(&path(1), &keys, "a");
        let said = refused(&path(1));
        assert!(said.contains("found 2 tensors in 2 parts"), "{said}");
    }
    write_part(&path(1), &[&numbers(0, 2)[..], &[count(2)]].concat(), "a");
    assert_eq!(Gguf::open(path(1)).expect("a file").tensors().len(), 2);
}

/// Reads everything in a file. Returns the number of values, or the error.
fn use_everything(folder: &Path, bytes: &[u8]) -> Result<usize, String> {
    let path: PathBuf = folder.join("model.safetensors");
    std::fs::write(path, bytes).expect("a file");
    let checkpoint = Checkpoint::open(folder).map_err(|error| error.to_string())?;
    let mut numbers = 0;
    for name in checkpoint.names() {
        let tensor = checkpoint.tensor(name).map_err(|error| error.to_string())?;
        numbers += tensor.to_f32().len();
    }
    Ok(numbers)
}

fn floats(values: &[f32]) -> Vec<u8> {
    values
        .iter()
        .flat_map(|value| value.to_le_bytes())
        .collect()
}

/// FP8 in blocks, NVFP4 of both kinds, and four-bit integers with zero points.
fn packed() -> Vec<Stored<'static>> {
    let shape = |shape: [i64; 2]| shape.iter().flat_map(|n| n.to_le_bytes()).collect();
    vec![
        ("a.weight", "F8_E4M3", &[4, 3], vec![0x38; 12]),
        ("a.weight_scale_inv", "F32", &[2, 1], floats(&[2.0, 0.5])),
        ("b.weight", "U8", &[1, 8], vec![0x10; 8]),
        ("b.weight_scale", "F8_E4M3", &[1, 1], vec![0x40]),
        ("b.weight_scale_2", "F32", &[], floats(&[0.25])),
        ("c.weight_packed", "U8", &[1, 8], vec![0x32; 8]),
        ("c.weight_scale", "F8_E4M3", &[1, 1], vec![0x40]),
        ("c.weight_global_scale", "F32", &[1], floats(&[4.0])),
        ("d.weight_packed", "I32", &[1, 1], vec![0x10; 4]),
        ("d.weight_scale", "F32", &[1, 1], floats(&[1.0])),
        ("d.weight_zero_point", "I32", &[1, 1], vec![3, 0, 0, 0]),
        ("d.weight_shape", "I64", &[2], shape([1, 7])),
    ]
}

#[test]
fn every_turned_bit_of_packed_numbers_is_refused_or_harmless() {
    let folder = tempfile::tempdir().expect("a folder");
    let whole = safetensors(&packed());
    assert_eq!(use_everything(folder.path(), &whole), Ok(12 + 16 + 16 + 7));
    let (mut accepted, mut refused) = (0, 0);
    let mut bytes = whole.clone();
    for bit in 0..8 * bytes.len() {
        bytes[bit / 8] ^= 1 << (bit % 8);
        match use_everything(folder.path(), &bytes) {
            Ok(_) => accepted += 1,
            Err(said) => {
                refused += 1;
                assert!(said.len() < 2_000, "bit {bit}: {} bytes", said.len());
            }
        }
        bytes[bit / 8] ^= 1 << (bit % 8);
    }
    assert!(accepted > 100 && refused > 1_000, "{accepted}, {refused}");
    for length in 0..whole.len() {
        let cut = use_everything(folder.path(), &whole[..length]);
        assert!(cut.is_err(), "{length} of {} bytes", whole.len());
    }
}

#[test]
fn packed_numbers_without_their_other_parts_are_refused() {
    let folder = tempfile::tempdir().expect("a folder");
    let all = packed();
    for missing in 0..all.len() {
        let mut rest = all.clone();
        let (name, ..) = rest.remove(missing);
        // FP8 without scales is plain FP8, and without zero points the middle code is zero. A missing weight is left to the model to
        // report.
        let may = [
            "a.weight",
            "a.weight_scale_inv",
            "b.weight",
            "c.weight_packed",
            "d.weight_zero_point",
        ];
        let said = use_everything(folder.path(), &safetensors(&rest));
        assert_eq!(said.is_ok(), may.contains(&name), "{name}: {said:?}");
    }
    for (name, wrong) in [
        ("b.weight_scale_2", f32::NAN),
        ("b.weight_scale_2", f32::INFINITY),
        ("c.weight_global_scale", 0.0),
    ] {
        let mut forged = all.clone();
        let tensor = forged.iter_mut().find(|tensor| tensor.0 == name);
        tensor.expect("a tensor").3 = floats(&[wrong]);
        let said = use_everything(folder.path(), &safetensors(&forged)).expect_err(name);
        assert!(said.contains("a finite number"), "{said}");
    }
    // Sizes whose product overflows, and negative sizes.
    for (name, wrong) in [
        ("d.weight_shape", [1i64 << 32, 1 << 32]),
        ("d.weight_shape", [i64::MAX, 2]),
        ("d.weight_shape", [-1, -7]),
    ] {
        let mut forged = all.clone();
        let tensor = forged.iter_mut().find(|tensor| tensor.0 == name);
        tensor.expect("a tensor").3 = wrong.iter().flat_map(|n| n.to_le_bytes()).collect();
        let said = use_everything(folder.path(), &safetensors(&forged));
        assert!(said.is_err(), "{wrong:?}: {said:?}");
    }
}

/// An importance matrix file with these sums and counts: `a` stacks two matrices of two columns.
fn importances(keys: &[(&str, Value)], sums: &[f32], counts: &[f32]) -> Vec<u8> {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("imatrix.gguf");
    let keys: Vec<_> = keys
        .iter()
        .map(|(name, value)| (name.to_string(), value.clone()))
        .collect();
    let tensor = |name: &str, count: usize| NewTensor {
        name: name.into(),
        format: &F32,
        shape: vec![count],
    };
    let tensors = [
        tensor("a.in_sum2", sums.len()),
        tensor("a.counts", counts.len()),
    ];
    let mut writer = Writer::create(&path, &keys, &tensors).expect("a file");
    for values in [sums, counts] {
        writer.write_tensor(&floats(values)).expect("data");
    }
    writer.finish().expect("a whole file");
    std::fs::read(&path).expect("a file")
}

/// Returns all mean squares, or the error.
fn mean_squares(bytes: &[u8]) -> Result<Vec<f32>, String> {
    let bytes = Bytes::copy_from(bytes).expect("memory");
    let read = Gguf::parse(bytes, "imatrix").and_then(Importances::new);
    let read = read.and_then(|read| {
        let means: Result<Vec<_>, _> = read.names().map(|name| read.mean_squares(name)).collect();
        Ok(means?.concat())
    });
    read.map_err(|error| error.to_string())
}

#[test]
fn importances_that_are_none_are_refused() {
    let kind = ("general.type", Value::from("imatrix"));
    let chunks = ("imatrix.chunk_count", Value::U32(7));
    let whole = [kind.clone(), chunks.clone()];
    let (sums, counts) = ([2.0, 0.0, 8.0, 4.0], [2.0, 0.0]);
    let bytes = importances(&whole, &sums, &counts);
    assert_eq!(mean_squares(&bytes), Ok(vec![1.0, 0.0, 1.0, 1.0]));
    let keys = |keys: &[(&'static str, Value)]| importances(keys, &sums, &counts);
    let model = [("general.type", Value::from("model")), chunks.clone()];
    let number = [("general.type", Value::U32(3)), chunks.clone()];
    let sets = ("imatrix.datasets", Value::Array(Array::U8(vec![1])));
    let [many, negative] = [Value::U64(1 << 32), Value::I32(-1)].map(|count| {
        let chunks = ("imatrix.chunk_count", count);
        keys(&[kind.clone(), chunks])
    });
    for (forged, said) in [
        (keys(std::slice::from_ref(&chunks)), "expected imatrix"),
        (keys(&model), "found model, expected imatrix"),
        (keys(&number), "expected imatrix"),
        (keys(std::slice::from_ref(&kind)), "imatrix.chunk_count"),
        (many, "imatrix.chunk_count"),
        (negative, "imatrix.chunk_count"),
        (keys(&[kind, chunks, sets]), "a list of texts"),
        (importances(&whole, &sums, &[]), "each of the 0 counts"),
        (
            importances(&whole, &sums, &[1.0; 3]),
            "each of the 3 counts",
        ),
        (importances(&whole, &[], &[1.0]), "found 0 numbers"),
        (importances(&whole, &[f32::NAN, 0.0], &[1.0]), "found NaN"),
        (importances(&whole, &[-1.0, 0.0], &[1.0]), "found -1"),
        (importances(&whole, &[f32::MAX, 0.0], &[f32::NAN]), ""),
    ] {
        match mean_squares(&forged) {
            Err(error) => assert!(error.contains(said), "{said}: {error}"),
            // A count of NaN means that no input was read, as in llama-quantize.
            Ok(means) => assert!(said.is_empty() && means == [1.0, 1.0]),
        }
    }
    // Values in another format could take twelve times the size of the file in memory.
    let mut other = bytes.clone();
    let name = b"a.in_sum2";
    let at = other.windows(name.len()).position(|part| part == name);
    let kind = at.expect("the name") + name.len() + 4 + 8;
    other[kind..kind + 4].copy_from_slice(&Q8_0.ggml_type.to_le_bytes());
    assert!(mean_squares(&other).is_err());

    let (mut accepted, mut refused) = (0, 0);
    let mut forged = bytes.clone();
    for bit in 0..8 * bytes.len() {
        forged[bit / 8] ^= 1 << (bit % 8);
        match mean_squares(&forged) {
            Ok(means) => {
                accepted += 1;
                assert!(means.iter().all(|mean| *mean >= 0.0 && mean.is_finite()));
            }
            Err(said) => {
                refused += 1;
                assert!(said.len() < 2_000, "bit {bit}: {} bytes", said.len());
            }
        }
        forged[bit / 8] ^= 1 << (bit % 8);
    }
    assert!(accepted > 100 && refused > 100, "{accepted}, {refused}");
    // A file ends with some padding zeros that are not needed.
    let whole = (0..bytes.len()).filter(|&length| mean_squares(&bytes[..length]).is_ok());
    assert!(whole.count() < 64);
}
