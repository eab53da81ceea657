//! The header of a safetensors file: its own first part, or alone as JSON.

use std::collections::HashSet;
use std::fmt;
use std::fs::File;
use std::io::Read;
use std::path::Path;

use serde::de::{Deserialize, Deserializer, MapAccess, Visitor};
use serde_json::Value;

/// A tensor, as a header describes it.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Tensor {
    pub(crate) name: String,
    pub(crate) dtype: String,
    pub(crate) shape: Vec<usize>,
}

/// What safetensors itself reads at most.
const MOST: u64 = 100_000_000;

/// The tensors of a file, or what is wrong with it.
pub(crate) fn read(path: &Path) -> Result<Vec<Tensor>, String> {
    if path.extension().is_some_and(|ext| ext == "json") {
        return parse(&std::fs::read(path).map_err(|e| e.to_string())?);
    }
    let mut file = File::open(path).map_err(|e| e.to_string())?;
    let mut len = [0; 8];
    file.read_exact(&mut len).map_err(|_| "it is too short for a safetensors file".to_owned())?;
    let len = u64::from_le_bytes(len);
    if len > MOST {
        return Err("it is not a safetensors file, nor is its name that of a header, `….json`".to_owned());
    }
    let mut header = Vec::new();
    file.take(len).read_to_end(&mut header).map_err(|e| e.to_string())?;
    if (header.len() as u64) < len {
        return Err(format!(
            "it is cut short: its header should have {len} bytes, and {} follow",
            header.len()
        ));
    }
    parse(&header)
}

/// The entries of a JSON object, in order, all of them.
struct Entries(Vec<(String, Value)>);

impl<'de> Deserialize<'de> for Entries {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        struct Each;
        impl<'de> Visitor<'de> for Each {
            type Value = Entries;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object of tensors")
            }
            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Entries, A::Error> {
                let mut all = Vec::new();
                while let Some(entry) = map.next_entry()? {
                    all.push(entry);
                }
                Ok(Entries(all))
            }
        }
        from.deserialize_map(Each)
    }
}

fn parse(json: &[u8]) -> Result<Vec<Tensor>, String> {
    let Entries(entries) =
        serde_json::from_slice(json).map_err(|e| format!("it is no header of a safetensors file: {e}"))?;
    let mut names = HashSet::new();
    let mut tensors = Vec::new();
    for (name, value) in entries {
        if !names.insert(name.clone()) {
            return Err(format!("`{name}` comes twice in it"));
        }
        if name == "__metadata__" {
            continue;
        }
        let dtype = value.get("dtype").and_then(Value::as_str);
        let axis = |n: &Value| n.as_u64().and_then(|n| usize::try_from(n).ok());
        let shape = value.get("shape").and_then(Value::as_array);
        let shape = shape.and_then(|s| s.iter().map(axis).collect());
        let (Some(dtype), Some(shape)) = (dtype, shape) else {
            return Err(format!(
                "it is no header of a safetensors file: `{name}` has no `dtype` and `shape`"
            ));
        };
        tensors.push(Tensor { name, dtype: dtype.to_owned(), shape });
    }
    Ok(tensors)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_header_is_read_from_either_kind_of_file() {
        let json = br#"{"__metadata__": {"format": "pt"}, "a.b": {"dtype": "F32", "shape": [2, 3], "data_offsets": [0, 24]}, "c": {"shape": [], "dtype": "I64"}}"#;
        let expected = [
            Tensor { name: "a.b".to_owned(), dtype: "F32".to_owned(), shape: vec![2, 3] },
            Tensor { name: "c".to_owned(), dtype: "I64".to_owned(), shape: vec![] },
        ];
        let folder = std::env::temp_dir().join(format!("nn-header-{}", std::process::id()));
        std::fs::create_dir_all(&folder).expect("a folder can be made");
        let (alone, whole) = (folder.join("m.json"), folder.join("m.safetensors"));
        let bytes = [&(json.len() as u64).to_le_bytes()[..], json, &[0; 32]].concat();
        std::fs::write(&alone, json).expect("a file can be written");
        std::fs::write(&whole, &bytes).expect("a file can be written");
        assert_eq!(read(&alone).expect("it is a header"), expected);
        assert_eq!(read(&whole).expect("it is a checkpoint"), expected);
        // Cut short anywhere before the data, it is none.
        for len in 0..8 + json.len() {
            std::fs::write(&whole, &bytes[..len]).expect("a file can be written");
            assert!(read(&whole).is_err(), "{len}");
        }
        std::fs::write(&whole, json).expect("a file can be written");
        assert!(read(&whole).expect_err("it is JSON").contains("not a safetensors file"));
        std::fs::remove_dir_all(&folder).expect("the folder can be removed");
    }

    #[test]
    fn what_is_no_header_is_said() {
        for (json, says) in [
            ("", "no header"),
            ("[]", "an object of tensors"),
            (r#"{"a": 1}"#, "`a` has no `dtype` and `shape`"),
            (r#"{"a": {"dtype": "F32", "shape": [-1]}}"#, "`a` has no"),
            (r#"{"a": {"dtype": "F32", "shape": [1.5]}}"#, "`a` has no"),
            (r#"{"a": {"dtype": "F32", "shape": [1]}, "a": {"dtype": "F32", "shape": [1]}}"#, "comes twice"),
        ] {
            let error = parse(json.as_bytes()).expect_err(json);
            assert!(error.contains(says), "{json}: {error}");
        }
        assert!(parse("[".repeat(100_000).as_bytes()).is_err());
        let deep = format!(r#"{{"a": {}"#, "[".repeat(100_000));
        assert!(parse(deep.as_bytes()).is_err());
    }
}
