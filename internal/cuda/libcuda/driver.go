// SPDX-License-Identifier: Apache-2.0

//go:build cuda && linux

package libcuda

import (
	"fmt"
	"strings"
	"sync"

	"github.com/lockstep-ml/lockstep/internal/clib"
	"github.com/lockstep-ml/lockstep/internal/cuda"
)

// driverFile is what NVIDIA's driver installs.
const driverFile = "libcuda.so.1"

// functions are those of libcuda, by their names there.
type functions struct {
	init, driverGetVersion, getErrorName, getErrorString                            uintptr
	deviceGetCount, deviceGet, deviceGetName, deviceGetPCIBusID                     uintptr
	deviceGetAttribute, deviceTotalMem, primaryCtxRetain, primaryCtxRelease         uintptr
	ctxSetCurrent, ctxSynchronize                                                   uintptr
	memGetInfo, memAlloc, memFree, memHostAlloc, memFreeHost                        uintptr
	streamCreate, streamDestroy, streamSynchronize, streamWaitEvent                 uintptr
	eventCreate, eventDestroy, eventRecord, eventQuery, eventSynchronize            uintptr
	moduleLoadDataEx, moduleGetFunction, funcSetAttribute, funcGetParamInfo, launch uintptr
	memcpyHtoD, memcpyDtoH, memcpyDtoD, memsetD8                                    uintptr
	streamBeginCapture, streamEndCapture, graphDestroy                              uintptr
	graphInstantiate, graphLaunch, graphExecSetParams, graphExecDestroy             uintptr
	deviceGetUUID, deviceGetUUIDv2, streamGetCaptureInfoV2, streamGetCaptureInfoV3  uintptr
}

func (f *functions) table() map[string]*uintptr {
	return map[string]*uintptr{
		"cuInit": &f.init, "cuDriverGetVersion": &f.driverGetVersion, "cuGetErrorName": &f.getErrorName,
		"cuGetErrorString": &f.getErrorString, "cuDeviceGetCount": &f.deviceGetCount, "cuDeviceGet": &f.deviceGet,
		"cuDeviceGetName": &f.deviceGetName, "cuDeviceGetPCIBusId": &f.deviceGetPCIBusID,
		"cuDeviceGetAttribute": &f.deviceGetAttribute,
		"cuDeviceTotalMem_v2":  &f.deviceTotalMem, "cuDevicePrimaryCtxRetain": &f.primaryCtxRetain,
		"cuDevicePrimaryCtxRelease_v2": &f.primaryCtxRelease, "cuCtxSetCurrent": &f.ctxSetCurrent,
		"cuCtxSynchronize": &f.ctxSynchronize, "cuMemGetInfo_v2": &f.memGetInfo, "cuMemAlloc_v2": &f.memAlloc,
		"cuMemFree_v2": &f.memFree, "cuMemHostAlloc": &f.memHostAlloc, "cuMemFreeHost": &f.memFreeHost,
		"cuStreamCreate": &f.streamCreate, "cuStreamDestroy_v2": &f.streamDestroy,
		"cuStreamSynchronize": &f.streamSynchronize, "cuStreamWaitEvent": &f.streamWaitEvent,
		"cuEventCreate": &f.eventCreate, "cuEventDestroy_v2": &f.eventDestroy, "cuEventRecord": &f.eventRecord,
		"cuEventQuery": &f.eventQuery, "cuEventSynchronize": &f.eventSynchronize,
		"cuModuleLoadDataEx": &f.moduleLoadDataEx, "cuModuleGetFunction": &f.moduleGetFunction,
		"cuFuncSetAttribute": &f.funcSetAttribute, "cuLaunchKernel": &f.launch,
		"cuMemcpyHtoDAsync_v2": &f.memcpyHtoD, "cuMemcpyDtoHAsync_v2": &f.memcpyDtoH,
		"cuMemcpyDtoDAsync_v2": &f.memcpyDtoD, "cuMemsetD8Async": &f.memsetD8,
	}
}

// graphs are those of CUDA graphs.
func (f *functions) graphs() map[string]*uintptr {
	return map[string]*uintptr{
		"cuStreamBeginCapture_v2": &f.streamBeginCapture, "cuStreamEndCapture": &f.streamEndCapture,
		"cuGraphDestroy":              &f.graphDestroy,
		"cuGraphInstantiateWithFlags": &f.graphInstantiate, "cuGraphLaunch": &f.graphLaunch,
		"cuGraphExecKernelNodeSetParams_v2": &f.graphExecSetParams, "cuGraphExecDestroy": &f.graphExecDestroy,
	}
}

// optional is what some drivers lack: cuFuncGetParamInfo and cuStreamGetCaptureInfo_v3 came with CUDA 12.4 and 12.3,
// and a function that has a newer version may go. They are 0 there.
func (f *functions) optional() map[string]*uintptr {
	return map[string]*uintptr{
		"cuFuncGetParamInfo": &f.funcGetParamInfo,
		"cuDeviceGetUuid":    &f.deviceGetUUID, "cuDeviceGetUuid_v2": &f.deviceGetUUIDv2,
		"cuStreamGetCaptureInfo_v2": &f.streamGetCaptureInfoV2, "cuStreamGetCaptureInfo_v3": &f.streamGetCaptureInfoV3,
	}
}

// driver is the library.
type driver struct {
	f       functions
	version int32 // 13000 for 13.0
	devices int32

	noGraphs error // why the driver cannot capture
}

// New opens the driver, once for the process. The error says what the machine lacks.
var New = sync.OnceValues(func() (cuda.Driver, error) {
	d, err := open()
	if err != nil {
		return nil, fmt.Errorf("CUDA cannot be used: %w", err)
	}
	return d, nil
})

func open() (*driver, error) {
	d := &driver{}
	lib, err := clib.Open(driverFile)
	if err != nil {
		return nil, fmt.Errorf("no NVIDIA driver: %w%s", err, cuda.ContainerAdvice())
	}
	if err := d.bind(lib); err != nil {
		return nil, err
	}
	if err := d.call("cuInit", d.f.init, 0); err != nil {
		return nil, err
	}
	if err := d.call("cuDriverGetVersion", d.f.driverGetVersion, clib.Address(&d.version)); err != nil {
		return nil, err
	}
	if err := d.call("cuDeviceGetCount", d.f.deviceGetCount, clib.Address(&d.devices)); err != nil {
		return nil, err
	}
	return d, nil
}

// bind finds the functions of a driver.
func (d *driver) bind(lib clib.Library) error {
	if err := lib.Bind(d.f.table()); err != nil {
		return fmt.Errorf("the NVIDIA driver is too old: %w", err)
	}
	for name, f := range d.f.optional() {
		if lib.Bind(map[string]*uintptr{name: f}) != nil {
			*f = 0
		}
	}
	d.noGraphs = lib.Bind(d.f.graphs())
	if d.noGraphs == nil && d.f.streamGetCaptureInfoV2 == 0 && d.f.streamGetCaptureInfoV3 == 0 {
		d.noGraphs = fmt.Errorf("%s has no function cuStreamGetCaptureInfo_v3 or cuStreamGetCaptureInfo_v2", lib.File)
	}
	return nil
}

// Version names the driver and, if they are there, cuBLASLt and cuDNN.
func (d *driver) Version() string {
	versions := []string{fmt.Sprintf("CUDA driver %d.%d", d.version/1000, d.version%1000/10)}
	if b, err := openBlas(); err == nil {
		versions = append(versions, "cuBLASLt "+b.version())
	}
	if n, err := openDnn(); err == nil {
		versions = append(versions, "cuDNN "+n.version())
	}
	return strings.Join(versions, ", ")
}

// Devices is the number of devices that CUDA_VISIBLE_DEVICES leaves.
func (d *driver) Devices() (int, error) { return int(d.devices), nil }

// call calls a function that needs no context.
func (d *driver) call(name string, f uintptr, args ...uintptr) error {
	return d.result(name, clib.Call(f, args...))
}

// result makes an error of a function's result.
func (d *driver) result(name string, code uintptr) error {
	if int32(code) == 0 {
		return nil
	}
	e := &cuda.Error{Call: name, Code: int(int32(code)), Name: "unknown"}
	for f, to := range map[uintptr]*string{d.f.getErrorName: &e.Name, d.f.getErrorString: &e.Msg} {
		var text uintptr
		if clib.Call(f, code, clib.Address(&text)) == 0 && text != 0 {
			*to = clib.Text(text)
		}
	}
	return e
}

// notReady is what cuEventQuery says of an event that is not done.
const notReady = 600

// contextDestroyed is CUDA_ERROR_CONTEXT_IS_DESTROYED.
const contextDestroyed = 709
