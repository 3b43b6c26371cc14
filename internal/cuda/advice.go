// SPDX-License-Identifier: Apache-2.0

package cuda

import (
	"errors"
	"fmt"
	"os"
	"strings"
)

// Codes of a driver that cannot compile kernels.
const (
	NoCompiler       = 221 // CUDA_ERROR_JIT_COMPILER_NOT_FOUND
	CompilerDisabled = 223 // CUDA_ERROR_JIT_COMPILATION_DISABLED
)

// Variables that decide what a driver can do.
const (
	envDisableJIT   = "CUDA_DISABLE_PTX_JIT"
	envCapabilities = "NVIDIA_DRIVER_CAPABILITIES"
)

// CompilerAdvice is what to do about an error of [Device.Load], to be written behind it; "" if that is not known.
func CompilerAdvice(err error) string {
	e, ok := errors.AsType[*Error](err)
	if !ok || e.Code != NoCompiler && e.Code != CompilerDisabled {
		return ""
	}
	if value := os.Getenv(envDisableJIT); value != "" && value != "0" {
		return fmt.Sprintf(": %s is %q: want it unset, since the driver compiles the kernels", envDisableJIT, value)
	}
	return ": want libnvidia-ptxjitcompiler.so.1, which comes with the driver and compiles the kernels" +
		ContainerAdvice()
}

// ContainerAdvice is what to do in a container that is not given all of the driver, to be written behind an error; ""
// if it is, or this is none.
func ContainerAdvice() string {
	value, ok := os.LookupEnv(envCapabilities)
	if !ok {
		return ""
	}
	for _, c := range strings.Split(value, ",") {
		if c = strings.TrimSpace(c); c == "compute" || c == "all" {
			return ""
		}
	}
	return fmt.Sprintf(": %s is %q in this container: want compute among them, as in %s=compute,utility",
		envCapabilities, value, envCapabilities)
}
