// SPDX-License-Identifier: Apache-2.0

package ptx

// specialRegister is a read-only register of 32 bits that a block or a launch sets.
type specialRegister uint8

const (
	specialTidX specialRegister = iota
	specialTidY
	specialTidZ
	specialNTidX
	specialNTidY
	specialNTidZ
	specialCtaX
	specialCtaY
	specialCtaZ
	specialNCtaX
	specialNCtaY
	specialNCtaZ
	specialLane
	specialWarp
	specialNWarp
	specialMaskEq
	specialMaskLt
	specialMaskLe
	specialMaskGt
	specialMaskGe
	specialDynamicShared
	specialTotalShared
	specialZero // what a single device and a single grid always have
	specialCount
)

var specialNames = map[string]specialRegister{
	"%tid.x": specialTidX, "%tid.y": specialTidY, "%tid.z": specialTidZ,
	"%ntid.x": specialNTidX, "%ntid.y": specialNTidY, "%ntid.z": specialNTidZ,
	"%ctaid.x": specialCtaX, "%ctaid.y": specialCtaY, "%ctaid.z": specialCtaZ,
	"%nctaid.x": specialNCtaX, "%nctaid.y": specialNCtaY, "%nctaid.z": specialNCtaZ,
	"%laneid": specialLane, "%warpid": specialWarp, "%nwarpid": specialNWarp,
	"%lanemask_eq": specialMaskEq, "%lanemask_lt": specialMaskLt, "%lanemask_le": specialMaskLe,
	"%lanemask_gt": specialMaskGt, "%lanemask_ge": specialMaskGe,
	"%dynamic_smem_size": specialDynamicShared, "%total_smem_size": specialTotalShared,
	"%smid": specialZero, "%gridid": specialZero,
}

// clockNames are registers whose value changes with each reading.
var clockNames = map[string]bool{"%clock": true, "%clock_hi": true, "%clock64": true, "%globaltimer": true,
	"%globaltimer_lo": true, "%globaltimer_hi": true}

func knownSpecial(name string) bool {
	_, ok := specialNames[name]
	return ok || clockNames[name]
}
