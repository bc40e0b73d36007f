//! Reading files, good and bad.
