//! GGUF: round trips, forged files, and truncated files.

#[path = "gguf/parts.rs"]
mod parts;
#[path = "gguf/random.rs"]
mod random;

use waterline_quant::gguf::{Array, Gguf, NewTensor, Value, Writer};
use waterline_quant::{Bytes, Error, F32, Q4_K, Q8_0};

/// Writes a file whose tensors hold a known pattern, and returns its bytes.
fn write(metadata: &[(String, Value)], tensors: &[NewTensor]) -> Vec<u8> {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("model.gguf");
    let mut writer = Writer::create(&path, metadata, tensors).unwrap();
    for (i, tensor) in tensors.iter().enumerate() {
        writer.write_tensor(&contents(i, tensor)).unwrap();
    }
    writer.finish().unwrap();
    std::fs::read(path).unwrap()
}

fn contents(i: usize, tensor: &NewTensor) -> Vec<u8> {
    let len = tensor.format.tensor_bytes(&tensor.shape).unwrap();
    (0..len).map(|at| (i * 31 + at * 7) as u8).collect()
}

fn parse(bytes: &[u8]) -> Result<Gguf, Error> {
    Gguf::parse(Bytes::from_vec(bytes.to_vec()), "test.gguf")
}

fn sample() -> (Vec<(String, Value)>, Vec<NewTensor>) {
    let metadata = vec![
        ("general.architecture".to_string(), Value::from("waterline")),
        ("a.u64".to_string(), Value::U64(1 << 40)),
        ("a.i8".to_string(), Value::I8(-3)),
        ("a.f32".to_string(), Value::F32(1e-5)),
        ("a.bool".to_string(), Value::Bool(true)),
        (
            "a.strings".to_string(),
            Value::from(vec!["x".to_string(), "yé".to_string(), String::new()]),
        ),
        (
            "a.nested".to_string(),
            Value::Array(Array::Array(vec![
                Array::I32(vec![1, -2]),
                Array::String(vec![]),
            ])),
        ),
        (
            "a.flags".to_string(),
            Value::Array(Array::Bool(vec![true, false])),
        ),
    ];
    let tensor = |name: &str, format, shape: &[usize]| NewTensor {
        name: name.into(),
        format,
        shape: shape.into(),
    };
    let tensors = vec![
        tensor("scalar", &F32, &[1]),
        tensor("empty", &F32, &[0]),
        tensor("matrix", &Q8_0, &[3, 64]),
        tensor("cube", &Q4_K, &[2, 1, 256]),
    ];
    (metadata, tensors)
}

#[test]
fn what_is_written_is_read() {
    let (metadata, tensors) = sample();
    let gguf = parse(&write(&metadata, &tensors)).unwrap();
    assert_eq!(&gguf.metadata()[..metadata.len()], &metadata);
    assert_eq!(gguf.get_u32("general.alignment").unwrap(), 64);
    assert_eq!(gguf.tensors().len(), tensors.len());
    for (i, (info, written)) in gguf.tensors().iter().zip(&tensors).enumerate() {
        assert_eq!(
            (&info.name, info.format(), &info.shape),
            (&written.name, Some(written.format), &written.shape)
        );
        let tensor = gguf.tensor(&written.name).unwrap();
        assert_eq!(&tensor.data[..], contents(i, written));
        assert!(tensor.is_empty() || (tensor.data.as_ptr() as usize).is_multiple_of(64));
    }
    assert_eq!(gguf.tensor("cube").unwrap().rows_cols(), (2, 256));
}

#[test]
fn getters_name_what_they_miss() {
    let (metadata, tensors) = sample();
    let gguf = parse(&write(&metadata, &tensors)).unwrap();
    assert_eq!(gguf.get_str("general.architecture").unwrap(), "waterline");
    assert_eq!(gguf.get_u64("a.u64").unwrap(), 1 << 40);
    assert_eq!(gguf.get_f32("a.f32").unwrap(), 1e-5);
    assert!(gguf.get_bool("a.bool").unwrap());
    assert_eq!(
        gguf.get_array("a.strings").unwrap().as_strings().unwrap()[1],
        "yé"
    );
    for (message, parts) in [
        (
            gguf.get_str("b").unwrap_err(),
            &["test.gguf", "'b'", "missing"][..],
        ),
        (
            gguf.get_str("a.u64").unwrap_err(),
            &["test.gguf", "'a.u64'", "u64 1099511627776", "a string"],
        ),
        (gguf.get_u32("a.u64").unwrap_err(), &["'a.u64'", "32-bit"]),
        (
            gguf.get_u64("a.i8").unwrap_err(),
            &["'a.i8'", "-3", "unsigned"],
        ),
        (
            gguf.tensor("none").unwrap_err(),
            &["test.gguf", "'none'", "missing"],
        ),
    ] {
        let message = message.to_string();
        assert!(parts.iter().all(|part| message.contains(part)), "{message}");
    }
}

#[test]
fn every_truncation_is_refused() {
    let (metadata, tensors) = sample();
    let bytes = write(&metadata, &tensors);
    // The padding after the last tensor may be missing.
    let padding = (64 - contents(3, &tensors[3]).len() % 64) % 64;
    for len in 0..bytes.len() - padding {
        assert!(
            parse(&bytes[..len]).is_err(),
            "{len} of {} bytes",
            bytes.len()
        );
    }
    assert!(parse(&bytes[..bytes.len() - padding]).is_ok());
}

/// Reads everything: every accepted file must be usable.
fn use_everything(gguf: &Gguf) {
    for info in gguf.tensors() {
        if let Ok(tensor) = gguf.tensor(&info.name) {
            tensor.to_f32();
        }
    }
    for (key, _) in gguf.metadata() {
        let _ = (
            gguf.get_str(key),
            gguf.get_u32(key),
            gguf.get_usize(key),
            gguf.get_f32(key),
        );
    }
}

#[test]
fn every_bit_flip_is_refused_or_harmless() {
    let (metadata, tensors) = sample();
    let mut bytes = write(&metadata, &tensors);
    for bit in 0..bytes.len() * 8 {
        bytes[bit / 8] ^= 1 << (bit % 8);
        if let Ok(gguf) = parse(&bytes) {
            use_everything(&gguf);
        }
        bytes[bit / 8] ^= 1 << (bit % 8);
    }
}

/// Builds a file by hand: header counts and the bytes after them.
fn raw(tensors: u64, metadata: u64, rest: &[&[u8]]) -> Vec<u8> {
    let mut bytes = b"GGUF\x03\0\0\0".to_vec();
    bytes.extend(tensors.to_le_bytes());
    bytes.extend(metadata.to_le_bytes());
    bytes.extend(rest.concat());
    bytes
}

fn string(text: &str) -> Vec<u8> {
    [&(text.len() as u64).to_le_bytes()[..], text.as_bytes()].concat()
}

fn tensor(name: &str, dims: &[u64], kind: u32, offset: u64) -> Vec<u8> {
    let mut bytes = string(name);
    bytes.extend((dims.len() as u32).to_le_bytes());
    bytes.extend(dims.iter().flat_map(|dim| dim.to_le_bytes()));
    bytes.extend(kind.to_le_bytes());
    bytes.extend(offset.to_le_bytes());
    bytes
}

fn refused(bytes: &[u8], parts: &[&str]) {
    let message = match parse(bytes) {
        Ok(_) => panic!("accepted, expected an error about {parts:?}"),
        Err(error) => error.to_string(),
    };
    assert!(
        message.starts_with("test.gguf: ") && parts.iter().all(|part| message.contains(part)),
        "{message}"
    );
}

#[test]
fn lies_are_refused() {
    let data = [0u8; 256];
    let u32_value = |value: u32| [&4u32.to_le_bytes()[..], &value.to_le_bytes()].concat();

    refused(b"GGML\x03\0\0\0", &["first four bytes", "GGUF"]);
    refused(b"", &["first four bytes"]);
    refused(b"GGUF\x01\0\0\0", &["version", "found 1"]);
    refused(b"GGUF\0\0\0\x03", &["version", "big-endian"]);
    refused(
        &raw(u64::MAX, 0, &[]),
        &["tensor count", "18446744073709551615"],
    );
    refused(&raw(0, 1 << 62, &[&data]), &["metadata count"]);
    refused(&raw(0, 1, &[&u64::MAX.to_le_bytes(), &data]), &["key 0"]);
    refused(
        &raw(0, 1, &[&2u64.to_le_bytes(), b"\xff\xfe", &data]),
        &["key 0", "UTF-8"],
    );
    refused(
        &raw(0, 1, &[&string("k"), &13u32.to_le_bytes(), &data]),
        &["'k'", "value type 13"],
    );
    refused(
        &raw(0, 1, &[&string("k"), &7u32.to_le_bytes(), &[2], &data]),
        &["'k'", "bool 2"],
    );
    let array = |kind: u32, count: u64| {
        [
            &9u32.to_le_bytes()[..],
            &kind.to_le_bytes(),
            &count.to_le_bytes(),
        ]
        .concat()
    };
    refused(
        &raw(0, 1, &[&string("k"), &array(0, u64::MAX), &data]),
        &["'k'", "at most"],
    );
    refused(
        &raw(0, 1, &[&string("k"), &array(12, 1 << 61), &data]),
        &["'k'", "at most"],
    );
    refused(
        &raw(0, 1, &[&string("k"), &array(99, 1), &data]),
        &["'k'", "array of type 99"],
    );
    let one_array = [&9u32.to_le_bytes()[..], &1u64.to_le_bytes()].concat();
    let deep = one_array.repeat(100_000);
    refused(
        &raw(0, 1, &[&string("k"), &9u32.to_le_bytes(), &deep]),
        &["'k'", "nested"],
    );
    let twice = [string("k"), u32_value(1)].concat();
    refused(&raw(0, 2, &[&twice, &twice]), &["'k'", "twice"]);
    for alignment in [0, 3, 48, 1 << 31] {
        let key = [string("general.alignment"), u32_value(alignment)].concat();
        refused(
            &raw(0, 1, &[&key, &data]),
            &["general.alignment", "power of two"],
        );
    }
    let text = [
        string("general.alignment"),
        8u32.to_le_bytes().to_vec(),
        string("x"),
    ]
    .concat();
    refused(
        &raw(0, 1, &[&text, &data]),
        &["general.alignment", "string \"x\""],
    );

    refused(
        &raw(1, 0, &[&tensor("t", &[1, 1, 1, 1, 1], 0, 0), &data]),
        &["'t'", "5 dimensions"],
    );
    refused(
        &raw(1, 0, &[&tensor("t", &[1 << 40, 1 << 40], 0, 0), &data]),
        &["'t'", "2^63"],
    );
    refused(
        &raw(1, 0, &[&tensor("t", &[0, 1 << 63], 0, 0), &data]),
        &["'t'"],
    );
    refused(
        &raw(1, 0, &[&tensor("t", &[1 << 62], 0, 0), &data]),
        &["'t'", "too large"],
    );
    refused(
        &raw(1, 0, &[&tensor("t", &[33], 2, 0), &data]),
        &["'t'", "[33]", "multiple of 32"],
    );
    refused(
        &raw(1, 0, &[&tensor("t", &[8], 0, 16), &data]),
        &["'t'", "offset 16", "multiple of 32"],
    );
    refused(
        &raw(1, 0, &[&tensor("t", &[8], 0, 1 << 40), &data]),
        &["'t'", "offset 1099511627776"],
    );
    refused(
        &raw(1, 0, &[&tensor("t", &[8], 0, u64::MAX - 31), &data]),
        &["'t'"],
    );
    refused(
        &raw(1, 0, &[&tensor("t", &[100], 0, 0), &data]),
        &["'t'", "400 bytes"],
    );
    refused(
        &raw(1, 0, &[&tensor("t", &[8], 200, 1 << 20), &data]),
        &["'t'"],
    );
    let (a, b) = (tensor("a", &[16], 0, 0), tensor("b", &[8], 0, 32));
    refused(&raw(2, 0, &[&a, &b, &data]), &["'b'", "'a'", "offset 32"]);
    let (a, b) = (tensor("a", &[8], 0, 0), tensor("a", &[8], 0, 32));
    refused(&raw(2, 0, &[&a, &b, &data]), &["'a'", "twice"]);
}

#[test]
fn unknown_formats_are_refused_when_asked_for() {
    let gguf = parse(&raw(1, 0, &[&tensor("t", &[64], 15, 0), &[0; 256]])).unwrap();
    assert_eq!(
        (gguf.tensors()[0].ggml_type, gguf.tensors()[0].format()),
        (15, None)
    );
    let message = gguf.tensor("t").unwrap_err().to_string();
    assert!(
        message.contains("'t'")
            && message.contains("ggml type 15 (Q8_K)")
            && message.contains("Q4_K"),
        "{message}"
    );
}

#[test]
fn double_precision_is_rounded_to_f32() {
    let numbers = [1.0 + 1e-9, -2.5, 1e300, 0.1f64].map(f64::to_le_bytes);
    let mut file = raw(1, 0, &[&tensor("t", &[2, 2], 28, 0)]);
    file.resize(file.len().next_multiple_of(32), 0);
    file.extend_from_slice(numbers.as_flattened());
    let gguf = parse(&file).unwrap();
    let tensor = gguf.tensor("t").unwrap();
    assert_eq!((tensor.format, &*tensor.shape), (&F32, &[2, 2][..]));
    assert_eq!(tensor.to_f32(), [1.0, -2.5, f32::INFINITY, 0.1]);
}

#[test]
fn distances_tell_the_block_length_of_type_42() {
    let file = |distance: u64| {
        // 4096 numbers take 1152 bytes in blocks of 64, and 1088 in blocks of 128.
        let (a, b) = (
            tensor("a", &[256, 16], 42, 0),
            tensor("b", &[8], 0, distance),
        );
        parse(&raw(2, 0, &[&a, &b, &[0; 1280]]))
    };
    for (distance, name, bytes) in [(1152, "Q2_0", 1152), (1088, "PQ2_0", 1088)] {
        let tensor = file(distance).unwrap().tensor("a").unwrap();
        assert_eq!((tensor.format.name, tensor.data.len()), (name, bytes));
    }
    let refused = |file: Result<Gguf, Error>| file.err().unwrap().to_string();
    let message = refused(file(1184));
    assert!(
        message.contains("'a'") && message.contains("neither fits"),
        "{message}"
    );
    // 256 numbers take 72 and 68 bytes, which padding makes 96.
    let (a, b) = (tensor("a", &[256], 42, 0), tensor("b", &[8], 0, 96));
    let message = refused(parse(&raw(2, 0, &[&a, &b, &[0; 1280]])));
    assert!(message.contains("both fit"), "{message}");
    // Rows of 64 numbers cannot have blocks of 128.
    let (a, b) = (tensor("a", &[64, 4], 42, 0), tensor("b", &[8], 0, 96));
    let gguf = parse(&raw(2, 0, &[&a, &b, &[0; 1280]])).unwrap();
    assert_eq!(gguf.tensor("a").unwrap().format.name, "Q2_0");
}

#[test]
fn version_2_is_read() {
    let mut bytes = raw(1, 0, &[&tensor("t", &[2, 4], 0, 0), &[0; 256]]);
    bytes[4] = 2;
    assert_eq!(parse(&bytes).unwrap().tensor("t").unwrap().shape, [4, 2]);
}

#[test]
fn unfinished_files_leave_nothing() {
    let (metadata, tensors) = sample();
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("model.gguf");
    let files = || std::fs::read_dir(folder.path()).unwrap().count();

    let mut writer = Writer::create(&path, &metadata, &tensors).unwrap();
    assert_eq!((files(), path.exists()), (1, false));
    writer.write_tensor(&[0; 3]).unwrap();
    let message = writer.write_tensor(&[0; 2]).unwrap_err().to_string();
    assert!(
        message.contains("'scalar'") && message.contains("at most 1"),
        "{message}"
    );
    drop(writer);
    assert_eq!(files(), 0);

    let mut writer = Writer::create(&path, &metadata, &tensors).unwrap();
    writer.write_tensor(&[0; 4]).unwrap();
    writer.write_tensor(&[0; 101]).unwrap();
    let message = writer.finish().unwrap_err().to_string();
    assert!(
        message.contains("'matrix'") && message.contains("found 101 bytes, expected 204"),
        "{message}"
    );
    assert_eq!(files(), 0);

    let mut writer = Writer::create(&path, &metadata, &tensors[..1]).unwrap();
    writer.write_tensor(&[1]).unwrap();
    writer.write_tensor(&[2, 3, 4]).unwrap();
    assert!(writer.write_tensor(&[5]).is_err());
    writer.finish().unwrap();
    assert_eq!((files(), path.exists()), (1, true));
    assert_eq!(
        &Gguf::open(&path).unwrap().tensor("scalar").unwrap().data[..],
        [1, 2, 3, 4]
    );

    let shape = vec![3];
    let bad = NewTensor {
        name: "t".into(),
        format: &Q4_K,
        shape,
    };
    let message = Writer::create(&path, &[], &[bad])
        .err()
        .unwrap()
        .to_string();
    assert!(
        message.contains("'t'") && message.contains("[3]"),
        "{message}"
    );
    assert!(Writer::create(folder.path().join("no/such"), &[], &[]).is_err());
    assert!(Gguf::open(folder.path().join("none")).is_err());
    assert!(Gguf::open(folder.path()).is_err());
    std::fs::write(folder.path().join("empty"), "").unwrap();
    let message = Gguf::open(folder.path().join("empty"))
        .err()
        .unwrap()
        .to_string();
    assert!(
        message.contains("empty") && message.contains("first four bytes"),
        "{message}"
    );
}

#[test]
fn values_that_are_no_utf8_are_replaced_with_a_note() {
    let latin1 = [&4u64.to_le_bytes()[..], b"caf\xe9"].concat();
    let c_string = string("word\0\0");
    let kind = 8u32.to_le_bytes();
    let list = [&9u32.to_le_bytes()[..], &kind, &3u64.to_le_bytes()].concat();
    let file = raw(
        0,
        3,
        &[
            &[string("a"), kind.to_vec(), latin1.clone()].concat(),
            &[string("b"), kind.to_vec(), c_string].concat(),
            &[string("c"), list, latin1.clone(), string("x"), latin1].concat(),
        ],
    );
    let file = parse(&file).expect("a file");
    assert_eq!(file.get_str("a").expect("a text"), "caf\u{fffd}");
    assert_eq!(file.get_str("b").expect("a text"), "word");
    let list = file
        .get_array("c")
        .expect("a list")
        .as_strings()
        .expect("texts");
    assert_eq!(list, ["caf\u{fffd}", "x", "caf\u{fffd}"]);
    assert_eq!(file.notes().len(), 2);
    assert!(file.notes()[0].starts_with("key 'a'"), "{:?}", file.notes());
}

/// Writes a file with these bytes and then a hole, which takes no disk space.
fn with_hole(bytes: &[u8], length: u64) -> (tempfile::TempDir, std::path::PathBuf) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("hole.gguf");
    std::fs::write(&path, bytes).unwrap();
    let file = std::fs::File::options().write(true).open(&path).unwrap();
    file.set_len(length).unwrap();
    (folder, path)
}

#[test]
fn counts_that_a_hole_could_hold_reserve_nothing() {
    const LENGTH: u64 = 12 << 30;
    let header = |tensors: u64, keys: u64| {
        let parts: [&[u8]; 4] = [
            b"GGUF",
            &3u32.to_le_bytes(),
            &tensors.to_le_bytes(),
            &keys.to_le_bytes(),
        ];
        parts.concat()
    };
    let array = |kind: u32, count: u64| {
        let key = [
            &header(0, 1)[..],
            &1u64.to_le_bytes(),
            b"k",
            &9u32.to_le_bytes(),
        ]
        .concat();
        [&key[..], &kind.to_le_bytes(), &count.to_le_bytes()].concat()
    };
    for (bytes, said) in [
        (header(0, (LENGTH - 24) / 13), "metadata count"),
        (header((LENGTH - 24) / 24, 0), "tensor count"),
        // The largest accepted counts. The hole reads as zeros, so all names are equal.
        (header(0, 1 << 16), "it twice"),
        (header(1 << 18, 0), "tensor ''"),
        (array(8, (LENGTH - 100) / 8), "at most 8388608"),
        (array(8, (1 << 23) + 1), "at most 8388608"),
        (array(9, (1 << 23) + 1), "at most 8388608"),
        (array(0, LENGTH - 100), "at most 8388608"),
        (array(10, (LENGTH - 100) / 8), "at most 8388608"),
    ] {
        let (_folder, path) = with_hole(&bytes, LENGTH);
        let error = Gguf::open(&path).err().expect("a refusal").to_string();
        assert!(error.contains(said), "{error}");
    }
}

#[test]
fn more_keys_than_any_model_has_are_refused() {
    let key = |i: usize| (format!("k{i}"), Value::U8(0));
    let metadata: Vec<_> = (0..1 << 16).map(key).collect();
    let error = parse(&write(&metadata, &[])).err().expect("a refusal");
    // The writer adds the key of the alignment.
    let error = error.to_string();
    assert!(
        error.contains("65537") && error.contains("at most 65536"),
        "{error}"
    );
    let gguf = parse(&write(&metadata[1..], &[])).unwrap();
    assert_eq!(gguf.get("k65535"), Some(&Value::U8(0)));
    assert_eq!(gguf.get("k0"), None);
}
