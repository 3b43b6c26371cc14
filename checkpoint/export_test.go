package checkpoint

// EncodeManifest seals a manifest that Save would not write.
func EncodeManifest(m *Manifest) ([]byte, error) { return m.encode() }
