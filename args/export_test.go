package args

// NoneOf is what takes the place of HuggingFace's None as a setting's default.
func NoneOf(key string) string { return noneOf[key] }
