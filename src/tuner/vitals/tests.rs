//! Vitals of real processes.
